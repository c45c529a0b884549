"""Write multi-view .mat files: v7 with SciPy, and the layout of MATLAB v7.3 with h5py."""

import itertools

import h5py
import numpy as np
import scipy.io
import scipy.sparse

NUMBERS = itertools.count()


def cell(*items, column=False):
    array = np.empty((len(items), 1) if column else (1, len(items)), dtype=object)
    array.ravel()[:] = list(items) if len(items) > 1 else [None]
    if len(items) == 1:
        array[0, 0] = items[0]
    return array


def write_v7(path, variables):
    scipy.io.savemat(path, variables)


def write_v73(path, variables):
    """The layout of MATLAB: a 512-byte header, transposed matrices, cells as references into #refs#."""
    with h5py.File(path, "w", userblock_size=512) as file:
        refs = file.create_group("#refs#")
        for name, value in variables.items():
            _store(file, refs, name, value)
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(116) + bytes(8) + b"\x00\x02IM")


def _store(group, refs, name, value):
    if scipy.sparse.issparse(value):
        value = value.tocsc()
        item = group.create_group(name)
        item.attrs["MATLAB_sparse"] = np.uint64(value.shape[0])
        item["data"], item["ir"], item["jc"] = value.data, value.indices.astype("u8"), value.indptr.astype("u8")
        kind = "double"
    elif isinstance(value, dict):
        item, kind = group.create_group(name), "struct"
    elif isinstance(value, str):
        item, kind = group.create_dataset(name, data=np.array([[ord(c)] for c in value], np.uint16)), "char"
    elif value.dtype == object:
        pointers = np.empty(value.T.shape, dtype=h5py.ref_dtype)
        for place, content in np.ndenumerate(value.T):
            pointers[place] = _store(refs, refs, f"r{next(NUMBERS)}", content).ref
        item, kind = group.create_dataset(name, data=pointers, dtype=h5py.ref_dtype), "cell"
    else:
        item, kind = group.create_dataset(name, data=np.atleast_2d(value).T), "double"
    item.attrs["MATLAB_class"] = np.bytes_(kind)
    return item
