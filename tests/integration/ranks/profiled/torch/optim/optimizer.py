"""As torch's, as far as a step goes."""

hooks = []


def register_optimizer_step_post_hook(hook):  # type: ignore[no-untyped-def]
    hooks.append(hook)


class Optimizer:
    def step(self) -> None:
        for hook in hooks:
            hook(self, (), {})
