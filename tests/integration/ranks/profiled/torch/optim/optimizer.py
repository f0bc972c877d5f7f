"""As torch's, as far as a step goes."""

from typing import Any, Callable

Hook = Callable[["Optimizer", Any, Any], None]
hooks: "list[Hook]" = []


def register_optimizer_step_post_hook(hook: Hook) -> None:
    hooks.append(hook)


class Optimizer:
    def step(self) -> None:
        for hook in hooks:
            hook(self, (), {})
