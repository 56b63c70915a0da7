"""DeepSpeed's files hold each op's name like this."""


class CpuAdamBuilder:
    NAME = "cpu_adam"


class AsyncIoBuilder:
    NAME = "async_io"


class UtilsBuilder:
    NAME = "utils"
