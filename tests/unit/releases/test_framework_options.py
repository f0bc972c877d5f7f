"""Words that came and went in Accelerate and the Trainer: which version knows which, and what is said of the others."""

from pathlib import Path

import pytest

from ipexctl.decide.releases.framework_options import find_unsupported_arguments, parse_options, supports_option
from ipexctl.decide.releases.table import parse_version
from tests.tables import read_table

OPTIONS = parse_options((Path(__file__).parents[3] / "ipexctl/data/options.toml").read_text("utf-8"))


@pytest.mark.parametrize(("of", "name", "version", "answer"), read_table("framework_options/known_words"))
def test_a_version_knows_a_word_or_not(of: str, name: str, version: str, answer: bool) -> None:
    assert supports_option(OPTIONS, of, name, version) is answer


GUIDE = ("--output_dir", "out", "--no_cuda", "--ddp_backend", "ccl", "--use_ipex", "--bf16")


def test_the_guides_arguments_fit_the_trainer_of_their_time() -> None:
    packages = {"transformers": "4.52.4", "torch": "2.7.0"}
    both = {"oneccl-bind-pt": "2.7.0", "intel-extension-for-pytorch": "2.7.0"}
    assert list(find_unsupported_arguments(OPTIONS, {**packages, **both}, GUIDE)) == []
    output = [note.text for note in find_unsupported_arguments(OPTIONS, packages, GUIDE)]
    assert [text.partition(" needs ")[0] for text in output] == ["--use_ipex", "--ddp_backend ccl"]
    assert output[1].endswith("install --backend ccl, or --ddp_backend gloo")


def test_a_new_trainer_is_reported_not_to_know_them_and_what_to_write_instead() -> None:
    output = [note.text for note in find_unsupported_arguments(OPTIONS, {"transformers": "5.23.0"}, GUIDE)]
    assert len(output) == 3
    assert "transformers 5.23.0 does not know --no_cuda any more (until 5.0.0); instead: --use_cpu" in output


def test_an_argument_that_is_taken_for_nothing_is_reported_to_be() -> None:
    (output,) = find_unsupported_arguments(OPTIONS, {"transformers": "4.56.2"}, ["--use_ipex"])
    assert "takes --use_ipex and does nothing with it (since 4.53.0)" in output.text


@pytest.mark.parametrize("words", [["--ddp_backend=ccl"], ["--ddp-backend", "ccl"], ["--ddp_backend", "ccl"]])
def test_however_it_is_spelt(words: list[str]) -> None:
    assert len(list(find_unsupported_arguments(OPTIONS, {"transformers": "5.1.0"}, words))) == 1
    assert list(find_unsupported_arguments(OPTIONS, {"transformers": "5.1.0"}, ["--ddp_backend", "gloo"])) == []


def test_without_transformers_nothing_is_reported_of_a_scripts_arguments() -> None:
    assert list(find_unsupported_arguments(OPTIONS, {"accelerate": "1.15.0"}, GUIDE)) == []


def test_what_is_not_known_yet_has_its_elder() -> None:
    (output,) = find_unsupported_arguments(OPTIONS, {"transformers": "4.31.0"}, ["--use_cpu"])
    assert "does not know --use_cpu yet (from 4.32.0 on); instead: --no_cuda" in output.text


def test_what_no_processor_trains_is_reported_before_the_start() -> None:
    words = ["--attn_implementation", "flex_attention"]
    (output,) = find_unsupported_arguments(OPTIONS, {"transformers": "5.1.0"}, words)
    assert output.text.endswith("torch has only its forward pass for them; instead: --attn_implementation sdpa")
    assert not list(find_unsupported_arguments(OPTIONS, {"transformers": "5.1.0"}, ["--attn_implementation", "sdpa"]))


def test_every_row_has_a_source_and_versions_in_order() -> None:
    for option in OPTIONS:
        assert option.source
        assert option.instead
        versions = [parse_version(version) for version in (option.since, option.idle, option.gone) if version]
        assert versions == sorted(versions)
        assert versions or option.fails
