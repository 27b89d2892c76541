# SPDX-License-Identifier: Apache-2.0
"""Writes golden_tokens.json and gpl3.ids.bin: what the `tokenizers` package makes of plain text.

The tokenizer is built from nothing but the GGUF file's own vocabulary and merges: byte-level BPE behind the
pre-tokenizer the file calls `smollm`, Digits(individual) then ByteLevel with its regex. No BOS, no added tokens: the
text of a special token is plain text here. Texts are kept in code points, so that the JSON file is ASCII.

    python make_golden_tokens.py MODEL.gguf GPL-3-TEXT
"""
import hashlib
import json
import pathlib
import struct
import sys

import gguf
import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers

HERE = pathlib.Path(__file__).resolve().parent
GPL3_IDS = 7639

# One regional indicator pair per flag; the family joins four people with U+200D.
FLAGS = "\U0001F1E9\U0001F1EA\U0001F1FA\U0001F1F8"
FAMILY = "\U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466"

TEXTS = [
    ("empty", ""),
    ("hello", "Hello, world!"),
    ("sentence", "The quick brown fox jumps over the lazy dog."),
    ("letter", "a"),
    ("letter_space", " a"),
    ("letters_spaced", "a b c D E F"),
    ("digit", "7"),
    ("number", "1234567890"),
    ("digit_space", "in 2024, 42 of 100"),
    ("digit_two_spaces", "a  5"),
    ("digit_many_spaces", "total:    37   and     8"),
    ("digit_newline", "1\n2\n\n3\r\n4"),
    ("digit_tab", "x\t9\t\t10"),
    ("digit_after_space_only", "  1  "),
    ("decimal", "3.14159e-10, -0.5, 1,000,000.00"),
    ("hex", "0x1F4A9 and 0b1010 and v2.0.1-rc3"),
    ("date", "2023-11-05T06:07:08Z"),
    ("mixed_alnum", "abc123def456 h2o CO2 4x4"),
    ("contraction_digit", "the 1990's, 5'm 6'll"),
    ("fraction_ascii", "3 1/2 cups, 1/4 tsp"),
    ("fraction_chars", "\u00bd and \u00be, 2\u00bc"),
    ("superscripts", "x\u00b2 + y\u00b3 = z\u2074 \u00b9"),
    ("subscripts", "H\u2082O  \u2082"),
    ("roman_numerals", "\u2160\u2161\u2162 and \u2167, \u2179"),
    ("circled", "\u2460 \u2461  \u2473 \u24ea \u2776"),
    ("arabic_digits", "\u0660\u0661\u0662 \u0663\u0664  \u0665"),
    ("devanagari_digits", "\u0915\u0967\u0968 \u0969"),
    ("fullwidth_digits", "\uff11\uff12 \uff21\uff22"),
    ("math_digits", "\U0001D7CE\U0001D7CF \U0001D7D8"),
    ("cjk_numerals", "\u4e00\u4e8c\u4e09 \u3007 \u5341"),
    ("chinese", "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u5427\u3002"),
    ("japanese", "\u3053\u3093\u306b\u3061\u306f\u3001\u4e16\u754c\uff01\u30ab\u30bf\u30ab\u30ca 5\u5206"),
    ("korean", "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4"),
    ("ideographic_space", "\u3000\u3000\u5b57\u3000a"),
    ("emoji", "\U0001F600 \U0001F680\U0001F680  \u2764\ufe0f"),
    ("emoji_zwj", FAMILY + " " + FAMILY),
    ("emoji_skin", "\U0001F44D\U0001F3FD ok \U0001F44D"),
    ("emoji_flags", FLAGS),
    ("emoji_keycap", "1\ufe0f\u20e3 2\ufe0f\u20e3"),
    ("special_im_start", "<|im_start|>"),
    ("special_endoftext", "<|endoftext|>"),
    ("special_turn", "<|im_start|>system\nYou are<|im_end|>\n"),
    ("special_inside", "a<|im_end|>b <repo_name> <file_sep><jupyter_code>"),
    ("special_cut", "<|im_start |> <|im_start| ><|endoftext"),
    ("spaces_2", "  "),
    ("spaces_9", "         "),
    ("spaces_inner", "a   b    c     d"),
    ("space_leading", "   leading"),
    ("space_trailing", "trailing   "),
    ("space_trailing_one", "trailing "),
    ("spaces_punct", "a  ,  b   !   c"),
    ("tabs", "\t\tif x:\n\t\t\treturn\t\n"),
    ("newlines", "a\n\n\nb\n\n\n\n"),
    ("newline_space", "a\n  b \n c  \n\n  "),
    ("crlf", "one\r\ntwo\r\n\r\nthree\rfour\n\rfive"),
    ("nbsp", "a\u00a0b\u00a0\u00a0c \u00a0d"),
    ("other_spaces", "a\u2003b\u2009\u200ac\u2028d\u2029e\u202ff\u205fg\u1680h"),
    ("next_line", "a\u0085b \u0085\u0085c"),
    ("mongolian_separator", "a\u180eb \u180e c"),
    ("zero_width", "a\u200bb \u200bc\u2060d\ufeffe"),
    ("vertical_tab", "a\x0bb\x0c\x0cc"),
    ("controls", "a\x01b\x02\x03 \x1b[31mred\x1b[0m\x7f"),
    ("separators_1c_1f", "a\x1cb\x1d \x1ec\x1f\x1fd"),
    ("controls_all", "".join(map(chr, range(1, 32)))),
    ("latin1_all", "".join(map(chr, range(0x80, 0x100)))),
    ("ascii_all", "".join(map(chr, range(32, 127)))),
    ("dropped_merge", "in\u00f2side \U0010fffd t\U000cfffde"),
    ("contractions", "I'm you're he's we've they'll she'd can't it's"),
    ("contractions_upper", "I'M YOU'RE HE'S 'LL 'VE 'D CAN'T"),
    ("contractions_bare", "'s't're've'm'll'd"),
    ("contractions_space", "it 's, ' s, ''s '''re"),
    ("contractions_long", "'srebrenica 'tis 'mother 'redo 'llama"),
    ("apostrophe_curly", "don\u2019t it\u2019s"),
    ("accents_nfc", "caf\u00e9 na\u00efve \u00c5ngstr\u00f6m"),
    ("accents_nfd", "cafe\u0301 nai\u0308ve A\u030angstro\u0308m"),
    ("marks_alone", "\u0301 \u0301a  \u0308\u0308"),
    ("combining_indic", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35"),
    ("rtl_arabic", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645!"),
    ("rtl_hebrew", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd 12 \u05e2\u05d5\u05dc\u05dd"),
    ("rtl_marks", "\u202eabc\u202c \u200fdef\u200e"),
    ("cyrillic", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0407\u0436\u0430\u043a"),
    ("greek", "\u03b1\u03b2\u03b3 \u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2"),
    ("cased_odd", "\u01c5 \u02b0 \u00df\u1e9e \u0130\u0131"),
    ("symbols", "\u20ac5 \u00a310 \u00a5 \u2122 \u00a9 \u2211\u222b\u221e \u2192"),
    ("punct_runs", "...!!!??? --- === /* */ && || :: -> => <<<>>>"),
    ("punct_space", " . , ; : ! ?"),
    ("underscore", "snake_case __init__ _x _1"),
    ("code_c", "for (int i = 0; i < 10; i++) {\n    sum += a[i] * 2;\n}\n"),
    ("code_python", "def f(x):\n    return x ** 2  # square\n\nprint(f(3))\n"),
    ("json", "{\"k\": [1, 2.5, null], \"s\": \"\\n\\u00e9\"}"),
    ("markdown", "# Title\n\n- item *one*\n- item `two`\n\n| a | b |\n|---|---|\n"),
    ("url", "https://example.org/a_b?c=1&d=%20#frag"),
    ("long_word", "pneumonoultramicroscopicsilicovolcanoconiosis"),
    ("very_long_word", "ab" * 150 + "c" * 77),
    ("long_same_letter", "a" * 65),
    ("long_equals", "=" * 70 + "\n" + "-" * 33),
    ("byte_symbols", "\u0120the \u010a \u0100\u0142"),
    ("noncharacter", "\ufffe \uffff \ufffd \ue000"),
    ("astral_letters", "\U00010330\U00010331 \U00020000\U00020001"),
]


def load_tokenizer(path):
    fields = gguf.GGUFReader(path).fields
    kind = fields["tokenizer.ggml.model"].contents(), fields["tokenizer.ggml.pre"].contents()
    if kind != ("gpt2", "smollm"):
        sys.exit(f"tokenizer {kind}: expected ('gpt2', 'smollm')")
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ", 1)) for m in fields["tokenizer.ggml.merges"].contents()]
    # No unknown token: a byte whose symbol the vocabulary lacks is dropped before merging.
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    return tokenizer


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: make_golden_tokens.py MODEL.gguf GPL-3-TEXT")
    model, gpl3 = map(pathlib.Path, sys.argv[1:])
    tokenizer = load_tokenizer(str(model))

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    text = gpl3.read_bytes()
    ids = encode(text.decode("utf-8"))
    if len(ids) != GPL3_IDS:
        sys.exit(f"GPL-3 gives {len(ids)} ids, expected {GPL3_IDS}")
    if len({name for name, _ in TEXTS}) != len(TEXTS):
        sys.exit("two texts have one name")
    (HERE / "gpl3.ids.bin").write_bytes(struct.pack(f"<{len(ids)}H", *ids))

    head = {
        "gguf_sha256": sha256(model.read_bytes()),
        "versions": {"tokenizers": tokenizers.__version__},
        "gpl3": {"text_sha256": sha256(text), "text_bytes": len(text), "count": len(ids), "ids_file": "gpl3.ids.bin"},
    }
    compact = {"ensure_ascii": True, "separators": (",", ":")}
    cases = [json.dumps({"name": n, "text": t, "ids": encode(t)}, **compact) for n, t in TEXTS]
    lines = ",\n".join(f'"{k}":{json.dumps(v, **compact)}' for k, v in head.items())
    (HERE / "golden_tokens.json").write_text("{" + lines + ',\n"cases":[\n' + ",\n".join(cases) + "\n]}\n")
    print(f"{len(cases)} cases, GPL-3 {len(ids)} ids")


if __name__ == "__main__":
    main()
