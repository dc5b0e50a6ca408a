"""Runs that end when a task decides so: `while(lookahead=d)` for every executor."""

from __future__ import annotations

import numpy as np

from ..errors import UsageError


class RunWhile:
    """Adds `run_while` to an executor, on top of its `run`, and a short representation."""

    model: str
    num_threads: int

    def __repr__(self) -> str:
        return f"<executor {self.model!r} on {self.num_threads} thread{'s' if self.num_threads > 1 else ''}>"

    def run_while(self, stop: np.ndarray, *, max_iterations: int, lookahead: int = 0, first_iteration: int = 0) -> int:
        """Run until a task decides to stop; the decision of iteration k ends the run after iteration k + lookahead.

        That number is exact under every model: lookahead is how many iterations may run before the decision is
        known, and they all run, so results do not depend on how far a model overlaps them.

        Parameters
        ----------
        stop : ndarray, shape (length,), length > lookahead
            What tasks decide: element i % length not zero says that iteration i decided to stop. It is cleared here.
        max_iterations : int
            The run ends after these in any case.

        Returns
        -------
        int
            Iterations that were run.

        Raises
        ------
        UsageError
            A negative number, a `stop` that is too short, or a plan whose passes take several iterations.

        Notes
        -----
        The executor's `run` is called for lookahead + 1 iterations at a time: whatever it overlaps it overlaps within
        these, and the price is its start and end once for all of them.
        """
        for name, value in (
            ("max_iterations", max_iterations),
            ("lookahead", lookahead),
            ("first_iteration", first_iteration),
        ):
            if not isinstance(value, (int, np.integer)) or value < 0:
                raise UsageError(f"{name} must be a whole number and not negative, got {value!r}")
        if not isinstance(stop, np.ndarray) or stop.ndim != 1 or len(stop) <= lookahead:
            value = f"shape {stop.shape}" if isinstance(stop, np.ndarray) else repr(stop)
            raise UsageError(
                f"stop must be an array of one dimension with more than lookahead = {lookahead} elements, got {value}; "
                f"make it longer"
            )
        if self.iteration_stride != 1:
            raise UsageError(
                f"a run can end after any iteration only where a pass of the plan is one, got a plan whose pass takes "
                f"{self.iteration_stride}; use a plan that is not unrolled"
            )
        done = 0
        while done < max_iterations:
            # No decision is known so far, so none of these iterations can be too many.
            chunk = min(lookahead + 1, max_iterations - done)
            numbers = np.arange(first_iteration + done, first_iteration + done + chunk) % len(stop)
            stop[numbers] = 0
            self.run(chunk, first_iteration + done)
            decided = np.flatnonzero(stop[numbers])
            done += chunk
            if len(decided):
                rest = min(int(decided[0]) + lookahead + 1 - chunk, max_iterations - done)
                if rest > 0:
                    self.run(rest, first_iteration + done)
                    done += rest
                break
        return done
