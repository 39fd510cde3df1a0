"""Which line of the program an event is at.

The line is looked for when a site, or the place of an op that creates nodes, is met for the first
time, and not again.
"""

import torch

from fpdiff.fingerprint.record.events.sitetable import Point
from fpdiff.fingerprint.record.events.source import running_line
from fpdiff.fingerprint.record.modules.nodes import Nodes, accumulated_leaf

BACKWARD_OF = "backward of "


class Lines:
    """Tells lines, of a backward op that of the forward op whose node it runs for."""

    def __init__(self, nodes: Nodes) -> None:
        """Tell the lines of the nodes that are noted here."""
        self._nodes = nodes
        self._of_places: dict[tuple[Point, int], str | None] = {}

    def of(self, point: Point) -> str | None:
        """Return `train.py:34` or `backward of train.py:34` for an event that is being recorded."""
        if point.phase == "init":
            return None
        if point.phase not in ("backward", "recompute"):
            return running_line()
        if torch._C._current_graph_task_id() == -1 or point.kind == "received":
            return None  # What a collective left is recorded whenever it is read.
        if (
            line := running_line()
        ) is not None:  # A hook's, a custom function's, a recomputation's.
            return line
        return self._of_forward() if point.phase == "backward" and point.op is not None else None

    def note(self, point: Point, occurrence: int) -> None:
        """Note the line of an op that is about to run for the node that was created for it."""
        if not self._nodes.is_new():
            return
        place = point, occurrence
        if place not in self._of_places:
            self._of_places[place] = self.of(point)
        self._nodes.note_line(self._of_places[place], by_pass=point.phase == "backward")

    def note_running(self) -> bool:
        """Note the line that runs for a node that was just created, if one was.

        Returns:
            False if a backward pass has created it: whose line that is hangs on the op's place.
        """
        if self._nodes.is_new():
            if torch._C._current_graph_task_id() != -1:
                return False
            self._nodes.note_line(running_line(), by_pass=False)
        return True

    def _of_forward(self) -> str | None:
        node = torch._C._current_autograd_node()
        if node is None or accumulated_leaf(node) is not None:
            return None
        line = self._nodes.line_of(node)
        if line is None or line.startswith(BACKWARD_OF):  # A second backward, of the first one.
            return line
        return BACKWARD_OF + line
