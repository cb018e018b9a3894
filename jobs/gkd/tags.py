"""The lines by which a run tells where it is: [ACTOR], [ROLLOUT], [SYNC] (P116, P117, P121).

The recipe of verl's git tree prints none of them; the card looks for them, and so do the phases of the job. They are
printed by the trainer's own steps, from the process that would wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def say(tag: str, text: str) -> None:
    """Print one line at once."""
    print(f"[{tag}] {text}", flush=True)


def timed(tag: str, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call` with a line before and one after it."""

    def wrapped(*words: Any, **named: Any) -> Any:
        say(tag, f"{what} START")
        began = time.monotonic()
        result = call(*words, **named)
        say(tag, f"{what} END after {time.monotonic() - began:.1f} s")
        return result

    return wrapped


def tagged(trainer: type[Any]) -> type[Any]:
    """Return a subclass of the recipe's OnPolicyDistillTrainer that says what it does."""

    class TaggedTrainer(trainer):  # type: ignore[misc]
        def init_workers(self) -> None:
            say("ROLLOUT", "init_model START")
            timed("ACTOR", "init_model", super().init_workers)()
            say("ROLLOUT", "init_model END")
            self.actor_wg.update_actor = timed("ACTOR", "update", self.actor_wg.update_actor)

        def sync_rollout_weights(self) -> None:
            say("SYNC", "Waiting for rollout")
            timed("SYNC", "weights to the rollout workers", super().sync_rollout_weights)()

        def _async_gen_next_batch(self, *words: Any, **named: Any) -> Any:
            future = super()._async_gen_next_batch(*words, **named)
            say("ROLLOUT", f"step {self.global_steps}: generation is under way")
            return future

        def _async_get_teacher_knowledge(self, future: Any) -> Any:
            asked = super()._async_get_teacher_knowledge(future)
            say("ROLLOUT", f"step {self.global_steps}: generated; the teacher is asked")
            return asked

    return TaggedTrainer
