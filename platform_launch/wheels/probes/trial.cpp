// Compiled, not run, before a build: the first lines of any op.
#include <Python.h>
#include <omp.h>
#include <c10/util/C++17.h>
#include <c10/core/Device.h>
