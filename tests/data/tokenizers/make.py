#!/usr/bin/env python3
"""Makes the synthetic tokenizers of this folder: small vocabularies trained on the sentences below, with the results of
the libraries as cases.json and decode.json.

usage: make.py FOLDER, in an environment with tokenizers 0.23.3, sentencepiece 0.2.3 and transformers 5.23.0
"""

import base64
import gzip
import importlib
import io
import json
import os
import random
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, models, trainers

convert_slow_tokenizer = importlib.import_module("transformers.convert_slow_tokenizer")

# Written for this purpose, and free of any rights.
SENTENCES = """
The carpenter joined two boards with a tenon, and the joint held for many years.
A small machine counts the grains of sand, one by one, until the evening comes.
When the rain stopped, the children ran into the garden; the dog followed them.
Numbers such as 7, 42, 1984 and 3.1415 are written in many ways.
She said: "I don't know, but we'll see what they've done, and who isn't here!"
Don't put the kettle on the table (it's too hot), he wrote in his letter.
Reading, writing and reckoning were taught in the schoolhouse on the hill.
The river carries the boats slowly towards the harbour, past fields and villages.
Der Tischler fügte zwei Bretter mit einem Zapfen zusammen, und die Fuge hielt über Jahre.
Die Straße führt größtenteils über Hügel, wo früher Mühlen standen.
Le menuisier a assemblé deux planches; l'été suivant, le meuble était déjà à sa place.
Où est passé le garçon qui chantait près de la fenêtre, cœur léger?
El carpintero unió dos tablas, y la niña aprendió a contar hasta mañana.
Столяр соединил две доски шипом, и соединение держалось много лет.
Когда дождь кончился, дети побежали в сад, а собака бежала за ними.
Ο ξυλουργός ένωσε δύο σανίδες και η ένωση κράτησε πολλά χρόνια.
大工は二枚の板をほぞで組み合わせました。子供たちは庭で遊んでいます。
木匠用榫头把两块木板接在一起。孩子们在花园里玩耍。
목수는 두 판자를 이어 붙였고 그 이음새는 오래 갔다.
النجار وصل لوحين بلسان خشبي وبقيت الوصلة سنين طويلة.
बढ़ई ने दो तख़्तों को जोड़ा और वह जोड़ बहुत साल टिका।
ช่างไม้ต่อแผ่นไม้สองแผ่นเข้าด้วยกัน
""".strip().split("\n")

POOLS = [
    "abcdefghijklmnopqrstuvwxyzetaoinshrdlu", "ABCDEFGHİIǅ", "        ", "\t\n\r\x0b\x0c\x85\xa0\u2003\u3000\u2028\u2581\u200b"
    "\u200d\ufeff\ufffd\xad", "0123456789½²٣Ⅷ", "!\"#$%&'()*+,-./:;<=>?@[]^_{|}~¡«»—…。、！", "\x01\x08\x0e\x1f\x7f\x80\x8f",
    "éèüßıœÅñǆﬁﬀ", "\u0301\u0308\u0327\u0345\u0334\u093c\u20dd\u1ab0\u1abf", "абвгдежзЖё", "日本語漢字ひらカタナーｶﾞ㍿㌀①",
    "한국어각", "عربيשלוםאָﷺ", "हिन्दीक्षि", "ไทยำ", "😀👨\u200d👩\u200d👧🇩🇪🏳️\u200d🌈❤️", "ＡＢｃ１２﹏", "𝒜𝟘𐐀ÅKΩµ", "\U00011935\U00011930\U0001e08f\U000116d0"]

BLANK = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
         "pre_tokenizer": None, "post_processor": None, "decoder": None}


def token(number, content, **flags):
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": number, "content": content, **{name: flags.get(name, False) for name in names}}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def replace(text, content):
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def train_sentencepiece(**options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 4), model_writer=out, hard_vocab_limit=False, num_threads=1,
        minloglevel=2, **options)
    return out.getvalue()


def proto_of(model):
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model)
    return proto


def words(**trainer):
    """A WordPiece or WordLevel vocabulary, by the tokens' order."""
    model, train = (models.WordPiece, trainers.WordPieceTrainer) if trainer.pop("pieces") else (
        models.WordLevel, trainers.WordLevelTrainer)
    t = Tokenizer(model(unk_token="[UNK]"))
    t.normalizer = Tokenizer.from_str(json.dumps({
        **BLANK, "normalizer": BERT, "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}})).normalizer
    t.pre_tokenizer = Tokenizer.from_str(json.dumps({
        **BLANK, "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}})).pre_tokenizer
    t.train_from_iterator(SENTENCES * 4, train(show_progress=False, special_tokens=SPECIAL, **trainer))
    return {text: i for i, (text, _) in enumerate(sorted(t.get_vocab().items(), key=lambda x: x[1]))}


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
        "lowercase": True}


def unigram(model, charsmap=True, **more):
    proto = proto_of(model)
    pieces = [[p.piece, p.score] for p in proto.pieces]
    body = {"type": "Unigram", "unk_id": proto.trainer_spec.unk_id, "vocab": pieces,
            "byte_fallback": proto.trainer_spec.byte_fallback}
    added = [token(i, p.piece, special=p.type != 4) for i, p in enumerate(proto.pieces) if p.type in (2, 3, 4)]
    text = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
    precompiled = {"type": "Precompiled", "precompiled_charsmap": text}
    parts = ([precompiled] if charsmap else []) + more.pop("normalizers", [])
    normalizer = sequence("normalizers", *parts) if parts else None
    return {**BLANK, "added_tokens": added, "normalizer": normalizer, **more, "model": body}


def metaspace(scheme, split=True):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}


def around(first, last):
    pieces = [{"SpecialToken": {"id": first[0], "type_id": 0}}] if first else []
    pieces.append({"Sequence": {"id": "A", "type_id": 0}})
    pieces += [{"SpecialToken": {"id": last[0], "type_id": 0}}] if last else []
    known = {text: {"id": text, "ids": [number], "tokens": [text]} for text, number in filter(None, (first, last))}
    return {"type": "TemplateProcessing", "single": pieces, "pair": pieces + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": known}


class Slow:
    """What the converters of transformers ask a tokenizer for."""

    def __init__(self, path, proto, prefix):
        self.vocab_file, self.proto, self.add_prefix_space, self._extra_ids = path, proto, prefix, 0

    def convert_ids_to_tokens(self, number):
        return self.proto.pieces[number].piece

    def convert_tokens_to_ids(self, text):
        return [p.piece for p in self.proto.pieces].index(text)


class Extractor:
    """The one of former versions of transformers, which gave merges in the order of the scores."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.proto = proto_of(file.read())

    def extract(self, vocab_scores):
        vocab = {p.piece: i for i, p in enumerate(self.proto.pieces)}
        return vocab, convert_slow_tokenizer.generate_merges(vocab, vocab_scores)


def converted(model):
    """The tokenizer.json that the converters of transformers make of a SentencePiece model."""
    proto = proto_of(model)
    bpe = proto.trainer_spec.model_type == 2
    base = convert_slow_tokenizer.LlamaConverter if bpe else convert_slow_tokenizer.T5Converter
    converter = type("Converter", (base,), {"SpmExtractor": Extractor,
                                            "handle_byte_fallback": proto.trainer_spec.byte_fallback,
                                            "unk_id": lambda self, proto: proto.trainer_spec.unk_id})
    with tempfile.NamedTemporaryFile() as file:
        file.write(model)
        file.flush()
        result = json.loads(converter(Slow(file.name, proto, proto.normalizer_spec.add_dummy_prefix))
                            .converted().to_str())
    # What the classes of the tokenizers add.
    unk = proto.trainer_spec.unk_id
    result["added_tokens"] = sorted(result["added_tokens"] + [token(unk, proto.pieces[unk].piece, special=True)],
                                    key=lambda t: t["id"])
    if bpe:
        result["post_processor"] = around(("<s>", proto.trainer_spec.bos_id), None)
    if bpe and proto.normalizer_spec.remove_extra_whitespaces:  # which Llama's model does not ask for
        result["normalizer"]["normalizers"][:0] = [
            {"type": "Replace", "pattern": {"Regex": "\\A +| +\\z"}, "content": ""},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]
    return result


def kinds():
    """Name, tokenizer.json, and the SentencePiece model where that is what the folder holds."""
    nmt = train_sentencepiece(model_type="unigram", vocab_size=600, normalization_rule_name="nmt_nfkc",
                              user_defined_symbols=["<sep>", "<mask>"], pad_id=3)
    fallback = train_sentencepiece(model_type="unigram", vocab_size=800, byte_fallback=True, character_coverage=0.98,
                                   normalization_rule_name="identity", split_digits=True)
    bpe = train_sentencepiece(model_type="bpe", vocab_size=900, byte_fallback=True, character_coverage=0.98,
                              normalization_rule_name="identity", user_defined_symbols=["<|im|>"],
                              remove_extra_whitespaces=False)
    bpe_bare = train_sentencepiece(model_type="bpe", vocab_size=700, add_dummy_prefix=False, bos_id=2, eos_id=1,
                                   normalization_rule_name="identity")
    eos = ("</s>", 2)
    yield "unigram", unigram(nmt, pre_tokenizer=metaspace("always"), decoder=metaspace("always"),
                             post_processor=around(None, eos), normalizers=[
                                 {"type": "Strip", "strip_left": False, "strip_right": True},
                                 {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}]), None
    yield "unigram-bytes", unigram(
        fallback, charsmap=False, pre_tokenizer=metaspace("first", False), post_processor=around(("<s>", 1), None),
        decoder=sequence("decoders", replace("\u2581", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                         {"type": "Strip", "content": " ", "start": 1, "stop": 0})), None
    vocab = words(pieces=True, vocab_size=500)
    special = [token(i, text, special=True) for i, text in enumerate(SPECIAL)]
    special[4]["lstrip"] = True
    added = special + [token(len(vocab), "Tenon", normalized=True, single_word=True),
                       token(len(vocab) + 1, "##X", rstrip=True)]
    yield "wordpiece", {
        **BLANK, "added_tokens": added, "normalizer": BERT, "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 20, "vocab": vocab}}, None
    level = {"type": "WordLevel", "unk_token": "[UNK]", "vocab": words(pieces=False, vocab_size=300)}
    yield "wordlevel", {
        **BLANK, "added_tokens": special,
        "normalizer": sequence("normalizers", {"type": "Nmt"}, {"type": "NFKD"}, {"type": "StripAccents"},
                               {"type": "Lowercase"}),
        "pre_tokenizer": sequence("pretokenizers", {"type": "Whitespace"}, {"type": "UnicodeScripts"},
                                  {"type": "Digits", "individual_digits": True}),
        "post_processor": {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2],
                           "trim_offsets": True, "add_prefix_space": False},
        "decoder": {"type": "BPEDecoder", "suffix": "e"}, "model": level}, None
    letters = sorted(set("".join(SENTENCES)) - {" "}) + ["an", "th", "ch", "den", "\u2581", "in", "et"]
    letters = {text: i for i, text in enumerate(SPECIAL + ["|"] + letters)}
    yield "letters", {
        **BLANK, "added_tokens": special,
        "normalizer": sequence("normalizers", {"type": "Strip", "strip_left": True, "strip_right": True},
                               {"type": "NFC"}, {"type": "Prepend", "prepend": "-"}, replace("--", "-")),
        "pre_tokenizer": sequence("pretokenizers", {"type": "CharDelimiterSplit", "delimiter": "-"},
                                  metaspace("first"), {"type": "Punctuation", "behavior": "MergedWithNext"},
                                  {"type": "FixedLength", "length": 2}),
        "decoder": sequence("decoders", {"type": "CTC", "pad_token": "[PAD]", "word_delimiter_token": "|",
                                         "cleanup": True}, metaspace("first")),
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "",
                  "max_input_chars_per_word": 100, "vocab": letters}}, None
    for name, model in ("sentencepiece-bpe", bpe), ("sentencepiece-bpe-bare", bpe_bare), ("sentencepiece-unigram", nmt):
        yield name, converted(model), model


def random_text(r, vocabulary, special):
    out = []
    for _ in range(r.choice([0, 1, 2, 3, 5, 8, 13])):
        kind = r.random()
        if kind < 0.3:
            out.append(r.choice(vocabulary))
        elif kind < 0.4:
            out.append(r.choice(SENTENCES)[:r.randrange(40)])
        elif kind < 0.5:
            out.append(" " * r.choice([1, 1, 2, 3]))
        elif kind < 0.6 and special:
            out.append(r.choice(special))
        elif kind < 0.61:
            out.append(r.choice("abéж") * 101)
        else:
            pool = r.choice(POOLS)
            out.append("".join(r.choice(pool) for _ in range(r.choice([1, 2, 3, 6]))))
    return "".join(out)


def write_list(path, cases):
    with open(path, "w", encoding="utf-8") as file:
        lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
        file.write("[\n" + lines + "\n]\n")


def decoded(tokenizer, ids):
    kept, skipped = (tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True))
    return {"decoded": kept, **({"decoded_skip_special": skipped} if skipped != kept else {})}


def write_cases(folder, tokenizer, special):
    r = random.Random(os.path.basename(folder))
    vocabulary = sorted(tokenizer.get_vocab(True))
    cases, size = [], max(tokenizer.get_vocab(True).values()) + 2
    texts = SENTENCES + [random_text(r, vocabulary, special) for _ in range(200)]
    for text in texts:
        add = r.random() < 0.5
        ids = tokenizer.encode(text, add_special_tokens=add).ids
        cases.append({"text": text, "add_special_tokens": add, "ids": ids, **decoded(tokenizer, ids)})
    write_list(folder + "/cases.json", cases)
    lists = [[r.randrange(size) for _ in range(r.randrange(1, 9)) for _ in range(r.choice([1, 1, 2]))]
             for _ in range(60)]
    write_list(folder + "/decode.json", [{"ids": ids, **decoded(tokenizer, ids)} for ids in lists])


def main():
    for name, description, model in kinds():
        folder = os.path.join(sys.argv[1], name)
        os.makedirs(folder, exist_ok=True)
        text = json.dumps(description, ensure_ascii=False, indent=None)
        if model:
            with open(folder + "/tokenizer.model", "wb") as file:
                file.write(model)
        elif name in ("unigram", "wordlevel"):
            with open(folder + "/tokenizer.json.gz", "wb") as file:
                file.write(gzip.compress(text.encode(), mtime=0))
        else:
            with open(folder + "/tokenizer.json", "w", encoding="utf-8") as file:
                file.write(text + "\n")
        write_cases(folder, Tokenizer.from_str(text), [t["content"] for t in description["added_tokens"]])


if __name__ == "__main__":
    main()
