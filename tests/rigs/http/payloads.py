"""What is sent: each datagram begins with its number, and what follows is made from the number alone, so a judge needs
none of what was sent. Two of three are text, with everything that JSON has to escape; the others are any bytes.
"""
import random

NUMBER = "{:09d} "
BINARY_EVERY = 3
chance = random.Random(32)
NOISE = bytes(range(256)) + chance.randbytes(1 << 16)
ALPHABET = [chr(code) for code in range(0x20, 0x7f)] * 3 + [chr(code) for code in range(0x20)] + list(
    "\x7f\x80\x85\xa0\xff\u0100\u2028\u2029\ufeff\ufffd\ud7ff\ue000\U0001f600\U0010ffff")
TEXTS = ["".join(chance.choices(ALPHABET, k=chance.randrange(120))).encode() for _ in range(997)]


def payload(number):
    begin = NUMBER.format(number).encode()
    if number % BINARY_EVERY:
        return begin + TEXTS[number % len(TEXTS)]
    place = number * 7919 % (1 << 16)
    # A byte that is no UTF-8 wherever it stands.
    return begin + b"\xff" + NOISE[place:place + 5 + number % 150]


def number_of(data):
    return int(data[:9])


def is_text(number):
    return number % BINARY_EVERY != 0
