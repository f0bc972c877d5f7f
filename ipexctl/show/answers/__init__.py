"""The screens of answers: a module here shows those of the module of the same name in `model.answers`."""
