"""Look at trajectories: one self-contained HTML page (page.py), and the learning curve as a PNG (curve.py)."""

from agent_gym.viewer.curve import CurvePoint, plot_curve
from agent_gym.viewer.page import render_html, write_html

__all__ = ["CurvePoint", "plot_curve", "render_html", "write_html"]
