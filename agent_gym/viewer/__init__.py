"""Look at trajectories: one self-contained HTML page (page.py); the learning curve of a run as another (curve.py)."""

from agent_gym.viewer.curve import CurvePoint, render_curve
from agent_gym.viewer.page import render_html, write_html

__all__ = ["CurvePoint", "render_curve", "render_html", "write_html"]
