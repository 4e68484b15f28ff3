"""Trajectories in the terminal, by keys: files on the left, the episodes of one, and an episode turn by turn.

It draws with the terminal's own colours, so that it looks the same over SSH and fits light and dark terminals.
terminal.py writes the text of an episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import DataTable, Footer, HelpPanel, Input, Static
from textual.worker import get_current_worker

from agent_gym.chat import text_of
from agent_gym.errors import ConfigError
from agent_gym.rollout import read_trajectories
from agent_gym.untrusted import harmless
from agent_gym.viewer.terminal import COLUMNS, Record, episode_cells, episode_view, plain

_ORDERS = ("", "best first", "worst first")


class TrajectoryBrowser(App[None]):
    """The browser; `run()` shows it until "q".

    Args:
        files: trajectory files that are looked at together, such as the files of one step, by the name in the list.

    Raises:
        ConfigError: if the first of them cannot be read; of others it is shown.
    """

    CSS = """
    Screen { layout: horizontal; }
    #lists { width: 42%; }
    #files { height: auto; max-height: 40%; }
    #episodes { height: 1fr; }
    DataTable, #reading { border: round ansi_bright_black; scrollbar-size-vertical: 1; }
    DataTable:focus, #reading:focus { border: round ansi_blue; }
    DataTable > .datatable--header { background: ansi_default; color: ansi_bright_black; }
    DataTable > .datatable--cursor { background: ansi_default; color: ansi_default; text-style: bold; }
    DataTable:focus > .datatable--cursor { text-style: reverse; }
    #reading { width: 1fr; padding: 0 1; }
    #search { border: round ansi_blue; padding: 0; }
    Screen.-narrow #lists { width: 1fr; }
    Screen.-narrow #reading, Screen.-narrow.-reading #lists { display: none; }
    Screen.-narrow.-reading #reading { display: block; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (70, "-wide")]
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "move('down')", "down", show=False),
        Binding("k", "move('up')", "up", show=False),
        Binding("question_mark", "help", "keys"),
        Binding("q", "quit", "quit"),
        Binding("n", "episode(1)", "next"),
        Binding("p", "episode(-1)", "previous"),
        Binding("s", "sort", "by reward"),
        Binding("f", "failures", "failures"),
        Binding("slash", "search", "search"),
        Binding("escape", "leave", "back", show=False),
    ]

    def __init__(self, files: Mapping[str, Sequence[Path]]) -> None:
        super().__init__()
        self.theme = "ansi-dark"
        self.files = files
        self.records: Sequence[Record] = _read(files[next(iter(files))])
        self.order, self.only_failures, self.words = _ORDERS[0], False, ""

    def compose(self) -> ComposeResult:
        with Vertical(id="lists"):
            yield Input(id="search", placeholder="search tasks and texts; nothing shows all")
            yield DataTable(id="files", cursor_type="row", show_header=False)
            yield DataTable(id="episodes", cursor_type="row")
        with VerticalScroll(id="reading", can_focus=True):
            yield Static(id="episode")
        yield Footer()

    def on_mount(self) -> None:
        files, episodes = self.query_one("#files", DataTable), self.query_one("#episodes", DataTable)
        files.add_columns("file", "solved")
        for name in self.files:
            files.add_row(plain(name), "", key=name)
        files.border_title = "files, episodes solved"
        files.display, self.query_one("#search").display = len(self.files) > 1, False
        episodes.add_columns(*COLUMNS)
        episodes.focus()
        self.rate_all()

    @work(thread=True)
    def rate_all(self) -> None:
        """Write the success rate of each file next to its name, as they are read."""
        worker, files = get_current_worker(), self.query_one("#files", DataTable)
        for at, paths in enumerate(self.files.values()):
            if worker.is_cancelled:
                return
            try:
                ended = [record["success"] for record in _read(paths) if not record["failure"]]
            except ConfigError:
                ended = []
            rate = f"{sum(ended) / len(ended):4.0%} of {len(ended)}" if ended else "none"
            self.call_from_thread(files.update_cell_at, (at, 1), rate, update_width=True)

    @on(DataTable.RowHighlighted, "#files")
    @work(thread=True, exclusive=True, group="file")
    def open_file(self, event: DataTable.RowHighlighted) -> None:
        """Show the episodes of the file under the cursor."""
        worker = get_current_worker()
        try:
            found = _read(self.files[str(event.row_key.value)], self._warn)
        except ConfigError as error:
            found = []
            self._warn(str(error))
        if not worker.is_cancelled:
            self.call_from_thread(self.list_episodes, found)

    def _warn(self, text: str) -> None:
        self.notify(harmless(text), severity="warning", markup=False)

    def list_episodes(self, records: Sequence[Record] | None = None) -> None:
        """List the episodes that are wanted, in the order that is wanted, of other records where they are given."""
        self.records = self.records if records is None else records
        table = self.query_one("#episodes", DataTable)
        wanted = [i for i, record in enumerate(self.records) if self._is_wanted(record)]
        if self.order:
            sign = -1 if self.order == "best first" else 1
            # A failed episode has no reward, and goes last.
            wanted.sort(key=lambda i: (self.records[i]["reward"] is None, sign * (self.records[i]["reward"] or 0.0)))
        table.clear()
        for i in wanted:
            table.add_row(*episode_cells(self.records[i], i + 1), key=str(i))
        shown = [f"{len(wanted)} of {len(self.records)} episodes", "failures" if self.only_failures else ""]
        shown += [self.order, f"with {self.words!r}" if self.words else ""]
        table.border_title = plain(", ".join(filter(None, shown)))
        if not wanted:
            self.query_one("#episode", Static).update("no such episode")

    def _is_wanted(self, record: Record) -> bool:
        if self.only_failures and record["success"]:
            return False
        texts = [text_of(message["content"]) for message in record["messages"]]
        return self.words in "\n".join([record["task_id"], record["spec"]["env_id"], *texts]).lower()

    @on(DataTable.RowHighlighted, "#episodes")
    def show_episode(self, event: DataTable.RowHighlighted) -> None:
        """Show the episode under the cursor."""
        if event.row_key not in event.data_table.rows:  # another list has taken the place of its
            return
        i = int(str(event.row_key.value))
        self.query_one("#episode", Static).update(episode_view(self.records[i], i + 1, len(self.records)))
        self.query_one("#reading").scroll_home(animate=False)

    @on(DataTable.RowSelected)
    def enter(self, event: DataTable.RowSelected) -> None:
        """Move to the next pane: from files to episodes, from there to the episode."""
        is_file = event.data_table.id == "files"
        self.screen.set_class(not is_file, "-reading")
        self.query_one("#episodes" if is_file else "#reading").focus()

    @on(Input.Submitted)
    def find(self, event: Input.Submitted) -> None:
        """List the episodes that contain some words."""
        self.words = event.value.lower()
        self.list_episodes()
        self.action_leave()

    def action_move(self, way: str) -> None:
        kind = "cursor" if isinstance(self.focused, DataTable) else "scroll"
        getattr(self.focused or self.query_one("#reading"), f"action_{kind}_{way}")()

    def action_episode(self, by: int) -> None:
        table = self.query_one("#episodes", DataTable)
        table.move_cursor(row=table.cursor_row + by)

    def action_sort(self) -> None:
        self.order = _ORDERS[(_ORDERS.index(self.order) + 1) % len(_ORDERS)]
        self.list_episodes()

    def action_failures(self) -> None:
        self.only_failures = not self.only_failures
        self.list_episodes()

    def action_search(self) -> None:
        self.screen.remove_class("-reading")
        search = self.query_one("#search", Input)
        search.display = True
        search.focus()

    def action_leave(self) -> None:
        self.screen.remove_class("-reading")
        self.query_one("#search").display = False
        self.query_one("#episodes").focus()

    def action_help(self) -> None:
        if self.screen.query(HelpPanel):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()


def _read(paths: Sequence[Path], left_out: Any = lambda _: None) -> list[dict[str, Any]]:
    return [record for path in paths for record in read_trajectories(path, left_out=left_out)]
