"""The digit images that the model `digits` is trained and tested on: scikit-learn's bundled set, split once."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

_SEED = 20
_HELD_OUT_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Digits:
    """Images of 8 x 8 pixels, a row each, pixels scaled to 0..1, and the digit that each shows."""

    images: npt.NDArray[np.float32]
    """Shape (rows, 64)."""
    labels: npt.NDArray[np.int64]
    """Shape (rows,), 0 to 9."""


def load_split() -> tuple[Digits, Digits]:
    """Return the images to train on and the held-out ones, which training never sees: the same split at every call.

    Source: UCI Optical Recognition of Handwritten Digits (test set, 1,797 images), as bundled with scikit-learn.
    """
    images, labels = load_digits(return_X_y=True)
    scaled = (images / 16.0).astype(np.float32)
    train_images, held_out_images, train_labels, held_out_labels = train_test_split(
        scaled, labels, test_size=_HELD_OUT_SHARE, random_state=_SEED, stratify=labels
    )
    return Digits(train_images, train_labels), Digits(held_out_images, held_out_labels)


def held_out() -> Digits:
    """Return the 540 images that the model `digits` never saw."""
    return load_split()[1]
