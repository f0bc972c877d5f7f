"""The two models of the speed examples: ResNet-50 in plain torch, BERT from a configuration. Nothing is downloaded.

Both are made with random weights and are given random data: how fast they are does not depend on either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

# name → (hidden size, layers, heads, intermediate size, vocabulary) of BERT
BERT_SIZES: Mapping[str, tuple[int, int, int, int, int]] = {
    "tiny": (64, 2, 2, 128, 1024),
    "small": (256, 4, 4, 1024, 30522),
    "base": (768, 12, 12, 3072, 30522),  # bert-base-uncased
}
# name → (width of the first stage, blocks of each stage, edge of the images in pixels) of ResNet
RESNET_SIZES: Mapping[str, tuple[int, tuple[int, int, int, int], int]] = {
    "tiny": (8, (1, 1, 1, 1), 32),
    "small": (32, (3, 4, 6, 3), 96),
    "base": (64, (3, 4, 6, 3), 224),  # ResNet-50
}
CLASSES = 10
TOKENS = {"tiny": 16, "small": 64, "base": 128}


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut, as in torchvision's ResNet-50 (stride on the 3×3 one)."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(inside, width, 1, 1), nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride), nn.ReLU(inplace=True),
            *_convolution(width, 4 * width, 1, 1),
        )  # fmt: skip
        same = stride == 1 and inside == 4 * width
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inside, 4 * width, 1, stride))
        self.out = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.body(x) + self.shortcut(x))


def _convolution(inside: int, outside: int, edge: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inside, outside, edge, stride, edge // 2, bias=False), nn.BatchNorm2d(outside)


def resnet(size: str) -> nn.Module:
    """ResNet-50 (``base``), or the same made smaller."""
    width, stages, _ = RESNET_SIZES[size]
    layers: list[nn.Module] = [*_convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inside = width
    for number, blocks in enumerate(stages):
        for block in range(blocks):
            layers.append(Bottleneck(inside, width << number, 2 if number and not block else 1))
            inside = 4 * (width << number)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, CLASSES))


class Classifier(nn.Module):
    """BERT of transformers, made from a configuration, that answers with logits alone (a tuple traces well)."""

    def __init__(self, size: str) -> None:
        from transformers import BertConfig, BertForSequenceClassification

        super().__init__()
        hidden, layers, heads, inner, vocabulary = BERT_SIZES[size]
        config = BertConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=inner,
            num_labels=CLASSES,
        )
        self.bert = BertForSequenceClassification(config)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.bert(tokens, attention_mask=mask, return_dict=False)[0]
        return logits


@dataclass(frozen=True)
class Job:
    """A model, and what makes a batch for it: the inputs in order, and the right answers."""

    model: nn.Module
    batch: Callable[[], tuple[tuple[torch.Tensor, ...], torch.Tensor]]


def job(model: str, size: str, batch: int, *, channels_last: bool = False) -> Job:
    """``model`` is "resnet50" or "bert". With ``channels_last`` images lie in memory as oneDNN likes them."""
    layout: dict[str, Any] = {"memory_format": torch.channels_last} if channels_last else {}

    def images() -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        edge = RESNET_SIZES[size][2]
        return (torch.randn(batch, 3, edge, edge).to(**layout),), torch.randint(CLASSES, (batch,))

    def sentences() -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        tokens = torch.randint(BERT_SIZES[size][4], (batch, TOKENS[size]))
        return (tokens, torch.ones_like(tokens)), torch.randint(CLASSES, (batch,))

    if model == "bert":
        return Job(Classifier(size), sentences)
    return Job(resnet(size).to(**layout), images)
