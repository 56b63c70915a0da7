#include <Python.h>

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "utils_op", nullptr, -1, nullptr};

PyMODINIT_FUNC PyInit_utils_op() { return PyModule_Create(&definition); }
