/* A stand-in for libnvidia-ml.so.1: answers from the text file that FAKE_NVML names.
 *
 * Lines of that file, fields separated by '|':
 *   driver|550.54.15|12040          version of the driver, of CUDA (1000 * major + 10 * minor)
 *   gpu|UUID|NAME|TOTAL_MIB|USED_MIB|MAJOR|MINOR|FABRIC_STATE
 *   mig|GPU|UUID|NAME|TOTAL_MIB|GPU_INSTANCE|COMPUTE_INSTANCE     MIG is on where a GPU has a mig line
 *   process|GPU|PID|MIB
 *   use|GPU|PERCENT                 a GPU without this line supports no utilization
 *   fail|FUNCTION|GPU|CODE          FUNCTION answers CODE for that GPU (-1: whenever it is called)
 *   lost|GPU|CODE                   every function answers CODE for that GPU
 *   field|GPU|ID|VALUE              a value of nvmlDeviceGetFieldValues; one without this line is not supported
 *   is|GPU|WHAT|VALUE               WHAT: pending failure reasons clock ecc sram
 *   xid|GPU|CODE                    an event for who waits for it; each line is delivered once
 * A file that was replaced is read again with the next call: that is how a test lets time pass.
 * Signatures and structures follow nvml.h of CUDA 12.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
enum { MAX = 256, TEXT = 96, MIG_SLOTS = 7 };

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; } Fabric;

typedef struct {
    int gpu; /* index of the physical GPU */
    int is_mig;
    char uuid[TEXT], name[TEXT];
    unsigned long long total_mib, used_mib;
    int major, minor, fabric_state;
    unsigned gpu_instance, compute_instance;
    int use_percent; /* -1: not supported */
} Device;

static struct { int gpu; unsigned pid; unsigned long long mib; } processes[MAX];
static struct { char function[TEXT]; int gpu, code; } failures[MAX];
static Device gpus[MAX], migs[MAX];
static struct { int gpu, id; unsigned long long value; } fields[MAX];
static struct { int gpu; char what[TEXT]; unsigned long long value; } states[MAX];
static struct { int gpu; unsigned long long code; } xids[MAX];
static int gpu_count, mig_count, process_count, failure_count, cuda_version;
static int field_count, state_count, xid_count, xids_told, initialized;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static struct stat loaded;
static char driver_version[TEXT];

static void load(void) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    gpu_count = mig_count = process_count = failure_count = field_count = state_count = xid_count = 0;
    if (file) fstat(fileno(file), &loaded);
    while (file && fgets(line, sizeof line, file)) {
        Device d = {0};
        int gpu, percent;
        d.use_percent = -1;
        if (sscanf(line, "driver|%95[^|]|%d", driver_version, &cuda_version) == 2) continue;
        if (sscanf(line, "gpu|%95[^|]|%95[^|]|%llu|%llu|%d|%d|%d", d.uuid, d.name, &d.total_mib, &d.used_mib,
                   &d.major, &d.minor, &d.fabric_state) == 7) {
            d.gpu = gpu_count;
            gpus[gpu_count++] = d;
        } else if (sscanf(line, "mig|%d|%95[^|]|%95[^|]|%llu|%u|%u", &d.gpu, d.uuid, d.name, &d.total_mib,
                          &d.gpu_instance, &d.compute_instance) == 6) {
            d.is_mig = 1;
            migs[mig_count++] = d;
        } else if (sscanf(line, "process|%d|%u|%llu", &processes[process_count].gpu,
                          &processes[process_count].pid, &processes[process_count].mib) == 3) {
            process_count++;
        } else if (sscanf(line, "use|%d|%d", &gpu, &percent) == 2 && gpu >= 0 && gpu < gpu_count) {
            gpus[gpu].use_percent = percent;
        } else if (sscanf(line, "fail|%95[^|]|%d|%d", failures[failure_count].function,
                          &failures[failure_count].gpu, &failures[failure_count].code) == 3) {
            failure_count++;
        } else if (sscanf(line, "lost|%d|%d", &failures[failure_count].gpu, &failures[failure_count].code) == 2) {
            strcpy(failures[failure_count++].function, "*");
        } else if (sscanf(line, "field|%d|%d|%llu", &fields[field_count].gpu, &fields[field_count].id,
                          &fields[field_count].value) == 3) {
            field_count++;
        } else if (sscanf(line, "is|%d|%95[^|]|%llu", &states[state_count].gpu, states[state_count].what,
                          &states[state_count].value) == 3) {
            state_count++;
        } else if (sscanf(line, "xid|%d|%llu", &xids[xid_count].gpu, &xids[xid_count].code) == 2) {
            xid_count++;
        } else {
            fprintf(stderr, "fake NVML: cannot read %s", line);
            abort();
        }
    }
    if (file) fclose(file);
}

static void reload(void) {
    struct stat now;
    const char *path = getenv("FAKE_NVML");
    pthread_mutex_lock(&loading);
    if (initialized && path && !stat(path, &now) && now.st_ino != loaded.st_ino) load();
    pthread_mutex_unlock(&loading);
}

static int failure(const char *function, int gpu) {
    reload();
    for (int i = 0; i < failure_count; i++)
        if ((!strcmp(failures[i].function, function) || (*failures[i].function == '*' && gpu >= 0)) &&
            (failures[i].gpu == -1 || failures[i].gpu == gpu))
            return failures[i].code;
    return SUCCESS;
}

#define ANSWER_OR_FAIL(gpu)                  \
    do {                                     \
        int code_ = failure(__func__, gpu);  \
        if (code_) return code_;             \
    } while (0)

static int write_text(char *to, unsigned size, const char *text) {
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    load();
    initialized = 1;
    ANSWER_OR_FAIL(-1);
    return SUCCESS;
}

int nvmlShutdown(void) {
    ANSWER_OR_FAIL(-1);
    return SUCCESS;
}

const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "NVML error"; }

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
    ANSWER_OR_FAIL(-1);
    return write_text(version, size, driver_version);
}

int nvmlSystemGetCudaDriverVersion(int *version) {
    ANSWER_OR_FAIL(-1);
    *version = cuda_version;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ANSWER_OR_FAIL(-1);
    *count = gpu_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    ANSWER_OR_FAIL(index);
    if (index >= (unsigned)gpu_count) return INVALID_ARGUMENT;
    *device = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    ANSWER_OR_FAIL(-1);
    for (int i = 0; i < gpu_count + mig_count; i++) {
        *device = i < gpu_count ? &gpus[i] : &migs[i - gpu_count];
        if (!strcmp((*device)->uuid, uuid)) return SUCCESS;
    }
    return NOT_FOUND;
}

typedef struct { unsigned gpu, memory; } Utilization;

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *found) {
    ANSWER_OR_FAIL(device->gpu);
    if (device->use_percent < 0) return NOT_SUPPORTED;
    found->gpu = device->use_percent;
    found->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetName(Device *device, char *name, unsigned size) {
    ANSWER_OR_FAIL(device->gpu);
    return write_text(name, size, device->name);
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned size) {
    ANSWER_OR_FAIL(device->gpu);
    return write_text(uuid, size, device->uuid);
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, ids, subsystem;
    char address[32];
} PciInfo;

int nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *pci) {
    ANSWER_OR_FAIL(device->gpu);
    char address[32];
    snprintf(address, sizeof address, "00000000:%02X:00.0", 0x10 + (unsigned)device->gpu);
    return write_text(pci->address, sizeof pci->address, address);
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    ANSWER_OR_FAIL(device->gpu);
    memory->total = device->total_mib << 20;
    memory->used = device->used_mib << 20;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor) {
    ANSWER_OR_FAIL(device->gpu);
    *major = device->major;
    *minor = device->minor;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *found) {
    unsigned room = *count;
    ANSWER_OR_FAIL(device->gpu);
    *count = 0;
    for (int i = 0; i < process_count && !device->is_mig; i++) {
        if (processes[i].gpu != device->gpu) continue;
        if (*count < room) found[*count] = (Process){processes[i].pid, processes[i].mib << 20, 0, 0};
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    ANSWER_OR_FAIL(device->gpu);
    *current = 0;
    for (int i = 0; i < mig_count; i++) *current |= migs[i].gpu == device->gpu;
    *pending = *current;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) {
    ANSWER_OR_FAIL(device->gpu);
    *count = MIG_SLOTS;
    return SUCCESS;
}

/* Instances sit in the slots of their GPU instance ids: the slots have holes, as on real devices. */
int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned slot, Device **mig) {
    ANSWER_OR_FAIL(device->gpu);
    for (int i = 0; i < mig_count; i++) {
        if (migs[i].gpu == device->gpu && migs[i].gpu_instance == slot) {
            *mig = &migs[i];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(Device *device, unsigned *id) {
    *id = device->gpu_instance;
    return device->is_mig ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetComputeInstanceId(Device *device, unsigned *id) {
    *id = device->compute_instance;
    return device->is_mig ? SUCCESS : NOT_SUPPORTED;
}

static int state(const char *what, int gpu, unsigned long long *value);

int nvmlDeviceGetGpuFabricInfo(Device *device, Fabric *info) {
    ANSWER_OR_FAIL(device->gpu);
    memset(info, 0, sizeof *info);
    info->state = device->fabric_state;
    unsigned long long cluster;
    if (state("cluster", device->gpu, &cluster) == SUCCESS)
        info->cluster[15] = (unsigned char)cluster;
    return device->fabric_state ? SUCCESS : NOT_SUPPORTED;
}

static int state(const char *what, int gpu, unsigned long long *value) {
    for (int i = 0; i < state_count; i++)
        if (states[i].gpu == gpu && !strcmp(states[i].what, what)) {
            *value = states[i].value;
            return SUCCESS;
        }
    return NOT_SUPPORTED;
}

static int state_of(Device *device, const char *what, unsigned *value) {
    unsigned long long found = 0;
    int code = state(what, device->gpu, &found);
    *value = found;
    return code;
}

int nvmlDeviceGetIndex(Device *device, unsigned *index) {
    ANSWER_OR_FAIL(device->gpu);
    *index = device->gpu;
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(Device *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    unsigned known;
    ANSWER_OR_FAIL(device->gpu);
    *corrected = *uncorrected = *pending = *failed = 0;
    known = state_of(device, "pending", pending) == SUCCESS;
    known |= state_of(device, "failure", failed) == SUCCESS;
    return known ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *reasons) {
    ANSWER_OR_FAIL(device->gpu);
    return state("reasons", device->gpu, reasons);
}

int nvmlDeviceGetClockInfo(Device *device, int type, unsigned *mhz) {
    ANSWER_OR_FAIL(device->gpu);
    return type == 1 ? state_of(device, "clock", mhz) : NOT_SUPPORTED;
}

int nvmlDeviceGetTotalEccErrors(Device *device, int type, int counter, unsigned long long *count) {
    ANSWER_OR_FAIL(device->gpu);
    return type == 1 && counter == 0 ? state("ecc", device->gpu, count) : NOT_SUPPORTED;
}

int nvmlDeviceGetMemoryErrorCounter(Device *device, int type, int counter, int location, unsigned long long *count) {
    ANSWER_OR_FAIL(device->gpu);
    return type == 1 && counter == 0 && location == 7 ? state("sram", device->gpu, count) : NOT_SUPPORTED;
}

typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    int code;
    union { unsigned long long ull; } value;
} Field;

int nvmlDeviceGetFieldValues(Device *device, int count, Field *found) {
    ANSWER_OR_FAIL(device->gpu);
    for (int i = 0; i < count; i++) {
        found[i].code = NOT_SUPPORTED;
        found[i].type = 3; /* unsigned long long */
        for (int j = 0; j < field_count; j++)
            if (fields[j].gpu == device->gpu && fields[j].id == (int)found[i].id) {
                found[i].code = SUCCESS;
                found[i].value.ull = fields[j].value;
            }
    }
    return SUCCESS;
}

typedef struct { Device *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } EventData;

int nvmlEventSetCreate(void **set) {
    ANSWER_OR_FAIL(-1);
    *set = xids;
    return SUCCESS;
}

int nvmlEventSetFree(void *set) { return set ? SUCCESS : INVALID_ARGUMENT; }

int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, void *set) {
    ANSWER_OR_FAIL(device->gpu);
    return types == 8 && set ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlEventSetWait_v2(void *set, EventData *found, unsigned timeout_ms) {
    struct timespec pause = {0, 10 * 1000 * 1000};
    for (unsigned waited_ms = 0; set; waited_ms += 10) {
        ANSWER_OR_FAIL(-1);
        if (xids_told < xid_count) {
            memset(found, 0, sizeof *found);
            found->device = &gpus[xids[xids_told].gpu];
            found->type = 8;
            found->data = xids[xids_told++].code;
            return SUCCESS;
        }
        if (waited_ms >= timeout_ms) return TIMEOUT;
        nanosleep(&pause, NULL);
    }
    return INVALID_ARGUMENT;
}
