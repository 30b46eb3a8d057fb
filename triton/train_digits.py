"""Train the model `digits` and write its weights: python triton/train_digits.py

A small multilayer perceptron on scikit-learn's bundled digits. Prints the accuracy on the held-out images and refuses
to write weights that are 95% right or less. Deterministic for one version of scikit-learn.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.neural_network import MLPClassifier

from balancer.stack.digits import load_split

WEIGHTS = Path(__file__).parent / "models" / "digits" / "1" / "weights.npz"
_REQUIRED_ACCURACY = 0.95


def main() -> None:
    """Train, test, write."""
    train, held_out = load_split()
    classifier = MLPClassifier(hidden_layer_sizes=(64,), alpha=0.3, max_iter=500, random_state=0)
    classifier.fit(train.images, train.labels)
    accuracy = classifier.score(held_out.images, held_out.labels)
    print(f"held-out accuracy {accuracy:.4f} on {len(held_out.labels)} images")
    if accuracy <= _REQUIRED_ACCURACY:
        sys.exit(f"accuracy {accuracy:.4f} is not over {_REQUIRED_ACCURACY}; {WEIGHTS} is left as it was")
    (hidden_weights, output_weights), (hidden_bias, output_bias) = classifier.coefs_, classifier.intercepts_
    np.savez(
        WEIGHTS,
        hidden_weights=hidden_weights.astype(np.float32),
        hidden_bias=hidden_bias.astype(np.float32),
        output_weights=output_weights.astype(np.float32),
        output_bias=output_bias.astype(np.float32),
    )


if __name__ == "__main__":
    main()
