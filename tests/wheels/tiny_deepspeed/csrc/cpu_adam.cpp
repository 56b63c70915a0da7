#include <Python.h>

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "cpu_adam_op", nullptr, -1, nullptr};

PyMODINIT_FUNC PyInit_cpu_adam_op() { return PyModule_Create(&definition); }
