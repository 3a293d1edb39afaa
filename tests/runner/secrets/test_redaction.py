from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delegate.model import Stream
from delegate.runner.agents.ask_tool import ask_token
from delegate.runner.secrets import redaction
from delegate.runner.secrets.forms import SHAPES, forms
from delegate.runner.secrets.redaction import Redactor
from delegate.tokens import PAIRING_PREFIX, PERSON_PREFIX, RUNNER_PREFIX, SLOT_PREFIX, new_token

OUT, ERR = Stream.STDOUT, Stream.STDERR
SECRETS = {
    "TOKEN": b"tok-3Zr8Qm5Yx0Lw7Kd2",
    "LONGER": b"tok-3Zr8Qm5Yx0Lw7Kd2-and-more",
    "SHORT": b"p4ss/w0rd",
    "ODD": 'k\u00f6n"ig\\s w\u00f6rd+1 {}'.encode(),
    "LINES": b"first line\nsecond line",
    "RUN": b"ababababababab",
}
FORMS = sorted({form for value in SECRETS.values() for form in forms(value)}, key=len, reverse=True)
KEY_LINES = b"MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\n" * 3
PRIVATE_KEY = b"-----BEGIN RSA PRIVATE KEY-----\n" + KEY_LINES + b"-----END RSA PRIVATE KEY-----"
TOKENS = [
    b"ghp_" + b"a1B2" * 9,
    b"github_pat_11ABCDEFG0123456789_abcdefgh",
    b"sk-ant-api03-" + b"x_Y-" * 8,
    b"sk-proj-" + b"x_Y-" * 8,
    b"sk-" + b"abcd1234" * 4,
    b"AKIAIOSFODNN7EXAMPLE",
    b"xoxb-1234567890-abcdef",
    b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    PRIVATE_KEY,
    PRIVATE_KEY.replace(b"\n", rb"\n"),
]
REDACTOR = Redactor(SECRETS)
# The same by one regular expression, which reads a hundred times slower and cannot wait for more.
REFERENCE = re.compile(b"|".join([*map(re.escape, FORMS), *(shape.whole_pattern() for shape in SHAPES)]))

words = st.sampled_from([*FORMS, *TOKENS, *SECRETS.values(), b"task-", b" ", b"\n", rb"\n", b"-", b"=", b"ab"])
parts = st.one_of(
    words,
    words.flatmap(lambda word: st.integers(0, len(word)).map(lambda cut: word[:cut])),
    words.flatmap(lambda word: st.integers(0, len(word)).map(lambda cut: word[cut:])),
    st.binary(max_size=12),
    st.text("abAKI0-_.\\\n ghp", max_size=12).map(str.encode),
)
streams = st.lists(parts, max_size=8).map(b"".join)


def once(data: bytes) -> bytes:
    redaction = REDACTOR.begin()
    return redaction.feed(OUT, data) + redaction.flush(OUT)


def marked(data: bytes) -> bytes:
    return REFERENCE.sub(b"*", data)


def unnamed(data: bytes) -> bytes:
    return re.sub(rb"\[redacted: [^\]]+\]", b"*", data)


@given(streams)
def test_exactly_the_secrets_are_replaced(data: bytes) -> None:
    assert unnamed(once(data)) == unnamed(marked(data))


@pytest.mark.promise("P19")
@given(streams, st.lists(st.integers(0, 200), max_size=12))
def test_it_does_not_matter_where_a_stream_is_cut(data: bytes, sizes: list[int]) -> None:
    redaction = REDACTOR.begin()
    clean, at = b"", 0
    for size in sizes:
        clean += redaction.feed(OUT, data[at : at + size])
        at += size

    clean += redaction.feed(OUT, data[at:]) + redaction.flush(OUT)

    assert clean == once(data)


@pytest.mark.promise("P19")
@pytest.mark.parametrize("secret", sorted([*FORMS, *TOKENS]))
def test_a_secret_is_found_wherever_it_is_cut(secret: bytes) -> None:
    data = b"before " + secret + b" after"
    for cut in range(len(data)):
        redaction = REDACTOR.begin()
        clean = redaction.feed(OUT, data[:cut]) + redaction.feed(OUT, data[cut:]) + redaction.flush(OUT)

        assert unnamed(clean) == b"before * after"


@pytest.mark.promise("P22")
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", rb"\n", rb"\r\n", rb"\\n"])
@pytest.mark.parametrize("columns", [64, 76])
def test_base64_in_lines_is_found_wherever_it_is_cut(line_end: bytes, columns: int) -> None:
    for before in range(25, 60, 5):
        plain = b64encode(b"x" * before + SECRETS["LONGER"] + b"y" * 60)
        lines = [plain[at : at + columns] for at in range(0, len(plain), columns)]
        data = line_end.join([*lines, b"end"])
        for cut in range(len(data)):
            redaction = REDACTOR.begin()
            clean = redaction.feed(OUT, data[:cut]) + redaction.feed(OUT, data[cut:]) + redaction.flush(OUT)

            assert clean.replace(line_end, b"") == once(plain) + b"end"


@given(streams)
def test_only_what_may_begin_a_secret_waits(data: bytes) -> None:
    redaction = REDACTOR.begin()

    waiting = len(once(data)) - len(redaction.feed(OUT, data))

    held = data[len(data) - waiting :] if waiting else b""
    is_value = any(form.startswith(held) and form != held for form in FORMS)
    assert not held or is_value or re.search(b"|".join(shape.unfinished_pattern() for shape in SHAPES), data)


@pytest.mark.parametrize(
    ("data", "held"),
    [
        (b'{"type":"assistant"}\n', b""),
        (b"the last word is tok", b"tok"),
        (b"tok-3Zr8Qm5Yx0Lw7Kd2", b"tok-3Zr8Qm5Yx0Lw7Kd2"),
        (b"tok-3Zr8Qm5Yx0Lw7Kd2 ", b""),
        (b"a task", b"sk"),
        (b"a sk", b"sk"),
        (b"a risk-y", b""),
        (b"ghp_1234", b"ghp_1234"),
        (b"ghp_12-4", b""),
        (b"ghp_" + b"x" * 254, b"ghp_" + b"x" * 254),
        (b"ghp_" + b"x" * 255, b""),
        (b"-----BEGIN PUBLIC KEY-----\n", b""),
        (b"-----BEGIN CERTIFICATE-----\n", b""),
        (PRIVATE_KEY, b""),
        (PRIVATE_KEY[:-1], PRIVATE_KEY[:-1]),
    ],
)
def test_what_waits_is_shown_by_examples(data: bytes, held: bytes) -> None:
    redaction = REDACTOR.begin()

    given_out = redaction.feed(OUT, data)

    assert given_out == once(data.removesuffix(held) if held else data)


@given(st.binary(max_size=300).filter(lambda data: not REFERENCE.search(data)))
def test_bytes_without_a_secret_all_come_out_as_they_are(data: bytes) -> None:
    assert once(data) == data


def test_the_streams_do_not_mix() -> None:
    redaction = REDACTOR.begin()

    first = redaction.feed(OUT, SECRETS["TOKEN"][:9])
    other = redaction.feed(ERR, SECRETS["TOKEN"][9:])

    assert (first, other) == (b"", SECRETS["TOKEN"][9:])
    assert redaction.flush(OUT) + redaction.flush(ERR) == SECRETS["TOKEN"][:9]


def test_a_stream_can_begin_again_after_its_end() -> None:
    redaction = REDACTOR.begin()
    redaction.feed(OUT, b"the end of a ta")
    redaction.flush(OUT)

    assert redaction.feed(OUT, TOKENS[4] + b"\n") == b"[redacted: API key]\n"


@pytest.mark.parametrize(
    ("spelt", "form"),
    [
        (SECRETS["ODD"], ""),
        (quote(SECRETS["ODD"], safe="").encode(), " (url-encoded)"),
        (json.dumps(SECRETS["ODD"].decode()).strip('"').encode(), " (JSON-escaped)"),
        (json.dumps(json.dumps(SECRETS["ODD"].decode())[1:-1])[1:-1].encode(), " (JSON-escaped)"),
        *((b64encode(b"x" * before + SECRETS["ODD"] + b"yz"), " (base64)") for before in range(7)),
        *((urlsafe_b64encode(b"?" * before + SECRETS["ODD"]), " (base64)") for before in range(3)),
    ],
)
def test_other_spellings_are_found_and_named(spelt: bytes, form: str) -> None:
    redaction = REDACTOR.begin()

    clean = redaction.feed(OUT, b"<" + spelt + b">") + redaction.flush(OUT)

    assert f"[redacted: ODD{form}]".encode() in clean
    assert dict(redaction.found) == {f"ODD{form}": 1}
    assert len(clean) <= len(f"<[redacted: ODD{form}]>") + 16


@pytest.mark.parametrize("token", TOKENS)
def test_an_unknown_token_is_recognised_by_its_shape(token: bytes) -> None:
    line = json.dumps({"text": f"KEY:\n{token.decode()}\nend"}).encode()

    clean = json.loads(once(line))

    assert re.fullmatch(r"KEY:\n\[redacted: [A-Za-z ]+\]\nend", clean["text"])


def test_the_tokens_of_delegate_are_recognised() -> None:
    prefixes = (PERSON_PREFIX, RUNNER_PREFIX, PAIRING_PREFIX, SLOT_PREFIX)
    tokens = [*map(new_token, prefixes), ask_token("drs_x", "claim-1", "desk-1f2e3d4c")]

    for token in tokens:
        assert once(f'DELEGATE_TOKEN="{token}"'.encode()) == b'DELEGATE_TOKEN="[redacted: Delegate token]"'


@pytest.mark.parametrize(
    "harmless",
    [
        "dst_width = clip_to_the_destination(dat_file_name_of_the_third_sample, drs_pair_)",
        "task-0123456789abcdef0123456789abcdef0123",
        "disk-0123456789abcdef0123456789abcdef0123",
        "sk-learn and ghp_ and xox-",
        "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A\n-----END PUBLIC KEY-----",
        'grep -r "-----BEGIN RSA PRIVATE KEY-----" .',
        "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    ],
)
def test_what_only_resembles_a_token_stays(harmless: str) -> None:
    assert Redactor({}).text(harmless) == harmless


def test_the_rest_of_a_key_that_was_cut_off_is_taken_out_too() -> None:
    head = PRIVATE_KEY[:120]

    assert once(b"$ head -3 key\n" + head + b"$ ") == b"$ head -3 key\n[redacted: private key]$ "


def test_facts_are_cleaned_to_their_depth() -> None:
    redaction = REDACTOR.begin()
    token = SECRETS["TOKEN"].decode()

    clean = redaction.data({"text": f"<{token}>", "n": 3, "todo": [{"what": token}, None, ("x", token)], token: True})

    mark = "[redacted: TOKEN]"
    assert clean == {"text": f"<{mark}>", "n": 3, "todo": [{"what": mark}, None, ["x", mark]], token: True}
    assert redaction.found["TOKEN"] == 3


@given(st.text(st.characters(), max_size=100))
def test_text_without_a_secret_is_the_same_text(text: str) -> None:
    assert Redactor({"A": b"never-in-it-0123456789"}).text(text) == text


def test_a_value_too_short_to_distinguish_from_words_is_left() -> None:
    assert Redactor({"PIN": b"1234567"}).text("line 1234567") == "line 1234567"


def test_a_name_cannot_break_the_line_it_stands_in() -> None:
    assert Redactor({'A"\n\\]B': b"12345678"}).text("12345678") == "[redacted: A B]"


def test_known_values_can_be_looked_for_in_what_is_to_go_out() -> None:
    data = b"key = tok-3Zr8Qm5Yx0Lw7Kd2-and-more\n" + b64encode(SECRETS["SHORT"]) + b"\n" + TOKENS[0]

    assert REDACTOR.find_known_secrets(data) == ["LONGER", "SHORT (base64)", "TOKEN"]
    assert REDACTOR.find_known_secrets(b"nothing") == []


@pytest.mark.parametrize("place", range(-50, 3))
def test_what_lies_across_two_pieces_of_large_data_is_found(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    monkeypatch.setattr(redaction, "PIECE", 512)
    token = b"ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    data = (b"." * (1024 + place) + token).ljust(2048, b".")

    assert list(redaction.find_shapes(data)) == [(token, "GitHub token")]
    assert Redactor({"IT": token}).find_known_secrets(data) == ["IT"]
