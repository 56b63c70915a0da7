#include <Python.h>

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "async_io_op", nullptr, -1, nullptr};

PyMODINIT_FUNC PyInit_async_io_op() { return PyModule_Create(&definition); }
