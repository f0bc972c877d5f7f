"""Figures that a printed line holds: step, loss, pace and the like, in the forms that training scripts print.

Read are dictionaries of transformers' Trainer, JSON lines, ``step 10 loss 0.3``, ``loss=0.3``, ``lr: 1e-4``, bars of
tqdm (Accelerate's and Lightning's are such bars too), ``12.5 samples/s``, and lines made for this reader:
``::metric name=NAME value=NUMBER step=NUMBER``. No pattern repeats a repetition: the time is linear in the line."""

import math
import re

LIMIT = 4096  # characters of a line that are searched

# Names in lower case with "_" for each of "/ . -" and blanks. Loss and accuracy of an evaluation are not those that a
# training step reports.
NAMES = {
    "step": "step global_step iter iteration train_step training_step",
    "steps": "total_steps max_steps num_steps optimization_steps total_iters",
    "epoch": "epoch",
    "loss": "loss lm_loss total_loss batch_loss train_loss_step reduced_train_loss",
    "train_loss": "train_loss training_loss",
    "eval_loss": "eval_loss val_loss valid_loss validation_loss test_loss dev_loss",
    "lr": "lr learning_rate",
    "grad_norm": "grad_norm gradient_norm gradnorm gnorm total_norm",
    "pace": "it_s its_s steps_s iter_s iters_s steps_per_second steps_per_sec steps_per_s it_per_s it_per_sec"
    " iterations_per_second iterations_s train_steps_per_second batches_s",
    "samples_s": "samples_s samples_sec samples_per_second samples_per_sec samples_per_s train_samples_per_second"
    " images_s images_sec images_per_second img_s imgs_s examples_s examples_per_second sequences_s",
    "tokens_s": "tokens_s tokens_sec tok_s tokens_per_second tokens_per_sec tokens_per_s train_tokens_per_second"
    " tok_per_s",
    "accuracy": "accuracy acc train_acc train_accuracy",
    "eval_accuracy": "eval_accuracy eval_acc val_accuracy val_acc valid_accuracy valid_acc validation_accuracy"
    " test_accuracy test_acc dev_accuracy dev_acc",
}  # fmt: skip
_BATCH = "batch"  # a step where its number is one of so many, else the size of a batch
_KEY_OF = {name: key for key, names in NAMES.items() for name in names.split()} | {"batch": _BATCH}

# Units behind a number, as `numerator/denominator`.
_PER_SECOND = {
    "pace": "it its iter iters iteration iterations step steps batch batches ba",
    "samples_s": "sample samples image images img imgs example examples ex seq seqs sequence sequences",
    "tokens_s": "tok toks token tokens",
}
_COUNTED = {unit: key for key, units in _PER_SECOND.items() for unit in units.split()}
_SIGNED = ("loss", "train_loss", "eval_loss", "grad_norm")  # the others are finite and not below 0
_SECONDS = {"s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3}
_ITERATIONS = frozenset(_PER_SECOND["pace"].split())

# One of these is in each line with figures, in any case. Substrings: a pattern of them takes ten times as long, and
# nearly all of what ranks print in bulk has none.
_SIGNS = ("loss", "step", "epoch", "iter", "norm", "rate", "lr", "acc", "/s", "s/", "/it", "/ba", "::metric")
_TOKEN = re.compile(
    r"[A-Za-z_][\w/.]*(?:-[A-Za-z_][\w/.]*)*"
    r"|(?<![\w.])[-+]?(?:(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,4})?"
)
_BETWEEN = re.compile(r"[\"']?[:=]?(?:tensor)?[\"'\[(]?-?")  # a name and its number, without blanks
_TOTAL = re.compile(r"\s{0,20}(?:/|of )\s{0,20}(\d{1,15})(?![\d.])")
# ``loss 2.4 → 0.5``: the new value counts.
_CHANGE = re.compile(r"\s{0,4}(?:→|->|=>)\s{0,4}([-+]?\d{1,15}(?:\.\d{1,15})?(?:[eE][-+]?\d{1,4})?)(?![\w.])")
_UNIT = re.compile(r" ?([A-Za-z]{1,12})/([A-Za-z]{1,12})\b")
_BAR = re.compile(
    r"(?<![\d.])(\d{1,15})(?:/(\d{1,15})|it|batch) \[[\d:]{4,12}(?:<[\d:?, a-z]{1,20})?,\s{0,4}"
    r"([\d.]{1,15}|\?) ?([A-Za-z]{1,12})/([A-Za-z]{1,12})"
)
_RICH_BAR = re.compile(  # Lightning's RichProgressBar: its line, and a dot
    r"[\u2501\u2578\u257a] {0,4}(\d{1,15})/(\d{1,15}) [\d:]{4,12} \u2022 [-\d:]{4,12} {1,4}([\d.]{1,15}) ?"
    r"([A-Za-z]{1,12})/([A-Za-z]{1,12})"
)
_EPOCH_STEP = re.compile(r"\]?\s{0,4}\[\s{0,8}(\d{1,15})/\s{0,8}(\d{1,15})\](?! ?\()")
# Bars that count something else than steps of a training.
_OTHER_BAR = re.compile(
    r"\s*(?:load|map|download|fetch|filter|generat|sav|writ|tokeniz|eval|predict|resolv|upload|valid|sanity|test|infer"
    r"|cast|process|shuffl|pack|extract|unzip|build|compil|convert|encod|pars|read|scan|check|prepar|merg|quanti|calibrat)",
    re.I,
)
_DATASETS_BAR = re.compile(r"\[[\d:]{4,12}(?:<[^,\]]{1,20})?, {0,4}[\d.]{1,15} examples/s\]")
_METRIC = re.compile(r"\s{0,20}::metric ")
_FIELD = re.compile(r"\b(name|value|step)=([^\s=]{1,80})")
_NAME = re.compile(r"[A-Za-z_][\w./-]{0,79}")
_ROW = re.compile(
    r" {0,4}\| {0,40}(?:\w{1,20}/)?(\w{1,40}) {0,40}\| {0,40}([-+.\w]{1,20}) {0,40}\|\s{0,4}$"
)  # OpenAI's logger
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}


def read_figures(line: str) -> dict[str, float]:
    """Returns the figures of one line, by the keys of `NAMES`; of a ``::metric`` line, by its own name and ``step``.

    ``pace`` is iterations per second (seconds per iteration are inverted), ``steps`` the number of steps in all; an
    accuracy is as it was printed, a share or a percentage. A loss or a norm of gradients may be NaN or infinite; all
    other figures are finite. Of two in a line the first counts; of one that redraws itself, what a terminal shows."""
    line = line[:LIMIT]
    lowered = line.lower()
    if not any(map(lowered.__contains__, _SIGNS)):
        return {}
    if (_OTHER_BAR.match(line) and "%|" in line) or _DATASETS_BAR.search(line):
        return {}
    if _METRIC.match(line):
        return _read_metric(line)
    if row := _ROW.match(line):
        line = f"{row[1]} {row[2]}"
    figures = _read_bar(line)
    for key, value in _read_pairs(line):
        figures.setdefault(key, value)
    if "train_runtime" in line:  # Trainer's summary: the mean of all losses is not the loss of a step
        figures.pop("train_loss", None)
    return figures


def _read_metric(line: str) -> dict[str, float]:
    fields: dict[str, str] = {}
    for field in _FIELD.finditer(line):
        fields.setdefault(field[1], field[2].strip("\"'"))
    name, value = fields.get("name", ""), _parse_number(fields.get("value", ""))
    if value is None or not _NAME.fullmatch(name):
        return {}
    step = _parse_number(fields.get("step", ""))
    figures = {name: value} | ({"step": step} if step is not None else {})
    own = {key for key in figures if key not in NAMES or key in _SIGNED}
    return {key: each for key, each in figures.items() if key in own or 0 <= each < math.inf}


def _parse_number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _read_bar(line: str) -> dict[str, float]:
    """Of bars of tqdm and Rich: how far, of how many, how fast."""
    bars = [*_BAR.finditer(line)] or [*_RICH_BAR.finditer(line)]
    if not bars:
        return {}
    bar = bars[-1]
    figures = _read_rate(bar[3].replace("?", "0"), bar[4], bar[5])
    if "pace" in figures:
        figures["step"] = float(bar[1])
        if bar[2]:
            figures["steps"] = float(bar[2])
    if bar[3] == "?":  # no rate is known yet
        return {name: value for name, value in figures.items() if name in ("step", "steps")}
    return figures


def _read_rate(number: str, above: str, below: str) -> dict[str, float]:
    """``2.5 it/s``, ``0.4 s/it``: a pace, or samples or tokens per second."""
    value = _parse_number(number.replace(",", ""))
    if value is None or not math.isfinite(value) or value < 0:
        return {}
    above, below = above.lower(), below.lower()
    if below in ("s", "sec", "second") and above in _COUNTED:
        return {_COUNTED[above]: value}
    if above in _SECONDS and below in _ITERATIONS and value > 1e-300:  # else its inverse may be infinite
        return {"pace": 1 / (value * _SECONDS[above])}
    return {}


def _read_pairs(line: str) -> list[tuple[str, float]]:
    pairs: list[tuple[str, float]] = []
    words: list[tuple[str, int]] = []  # the last two before this token, and where they end
    skip = -1  # tokens that begin before are part of something read already
    for token in _TOKEN.finditer(line):
        start, end, shown = token.start(), token.end(), token.group()
        if start < skip:
            continue
        value = _NOT_FINITE.get(shown.lower()) if shown[0].isalpha() else _parse_number(shown.replace(",", ""))
        if value is None:
            if shown != "tensor":
                words = [*words[-1:], (shown, end)] if words and line[words[-1][1] : start] == " " else [(shown, end)]
            continue
        if line[start - 1 : start] == "-":
            value = -value
        if change := _CHANGE.match(line, end):
            value, end = float(change[1]), change.end()
            skip = end
        key = _find_key(line, words, start)
        if key == _BATCH:
            key = "step" if _TOTAL.match(line, end) else ""
        if key and _is_plausible(key, value, line, end):
            pairs.append((key, value))
            if key == "epoch" and (step := _EPOCH_STEP.match(line, end)):
                pairs += [("step", float(step[1])), ("steps", float(step[2]))]
                skip = step.end()
            elif key == "step" and (total := _TOTAL.match(line, end)):
                pairs.append(("steps", float(total[1])))
                skip = total.end()
        elif unit := _UNIT.match(line, end):
            pairs += _read_rate(shown, unit[1], unit[2]).items()
            skip = unit.end()
        words = []
    return pairs


def _find_key(line: str, words: list[tuple[str, int]], start: int) -> str:
    """Returns which figure the number at ``start`` is, by the one or two words before it."""
    if not words:
        return ""
    word, end = words[-1]
    if start - end > 40 or not _BETWEEN.fullmatch("".join(line[end:start].split())):
        return ""
    name = _normalise(word)
    before = _normalise(words[-2][0]) if len(words) > 1 else ""
    if before and (key := _KEY_OF.get(f"{before}_{name}")):
        return key
    return _KEY_OF.get(name, "")


def _normalise(name: str) -> str:
    return name.lower().rstrip(".").translate(str.maketrans("/.-", "___"))


def _is_plausible(key: str, value: float, line: str, end: int) -> bool:
    """Whether a number can be this figure: whole where it counts, not the beginning of a time or of a longer word."""
    after = line[end : end + 2]
    if after[:1].isalnum() or after[:1] == "_" or (after[:1] in tuple(":.,-") and after[1:].isdigit()):
        return False
    if not math.isfinite(value):
        return key in _SIGNED
    if key in ("step", "steps"):
        return value >= 0 and value == int(value) and after[:1] != "%"
    if key == "epoch":
        return value >= 0 and after[:1] != "%"
    return value >= 0 or key in _SIGNED
