"""A pickle as Python 2 and NumPy 1 wrote it, such as the batches of CIFAR-10."""

import struct

import numpy as np


class Python2Pickle:
    """Writes what cPickle.dump(value, file, protocol=2) of Python 2 wrote, with NumPy 1: byte strings, memo and all."""

    def __init__(self, value):
        self.memo = 0
        self.content = b"\x80\x02" + self.of(value) + b"."

    def put(self):
        self.memo += 1
        return b"q" + bytes([self.memo]) if self.memo < 256 else b"r" + struct.pack("<i", self.memo)

    def of(self, value):
        match value:
            case int() if 0 <= value < 256:
                return b"K" + bytes([value])
            case int() if 0 <= value < 65536:
                return b"M" + struct.pack("<H", value)
            case int():
                return b"J" + struct.pack("<i", value)
            case bytes() if len(value) < 256:
                return b"U" + bytes([len(value)]) + value + self.put()
            case bytes():
                return b"T" + struct.pack("<i", len(value)) + value + self.put()
            case list():
                return b"]" + self.put() + b"(" + b"".join(map(self.of, value)) + b"e"
            case dict():
                return b"}" + self.put() + b"(" + b"".join(self.of(k) + self.of(v) for k, v in value.items()) + b"u"
            case np.ndarray():
                made = b"cnumpy.core.multiarray\n_reconstruct\n" + self.put() + b"cnumpy\nndarray\n" + self.put()
                made += b"K\x00\x85" + self.put() + self.of(b"b") + b"\x87" + self.put() + b"R" + self.put()
                shape = b"".join(map(self.of, value.shape)) + b"\x86" + self.put()
                kind = b"cnumpy\ndtype\n" + self.put() + self.of(value.dtype.str.encode().strip(b"|<"))
                kind += b"K\x00K\x01\x87" + self.put() + b"R" + self.put()
                kind += b"(K\x03" + self.of(b"|") + b"NNN" + self.of(-1) + self.of(-1) + b"K\x00t" + self.put() + b"b"
                return made + b"(K\x01" + shape + kind + b"\x89" + self.of(value.tobytes()) + b"t" + self.put() + b"b"
        raise TypeError(value)


def python2(value):
    return Python2Pickle(value).content
