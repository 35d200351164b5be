/* Stand-in of libnvidia-ml.so.1 for lab hosts: answers NVML's calls from /run/lab/nvml.conf, without a GPU.
 *
 * The file has lines "key value" and "<gpu>.key value"; lab-gpu writes it at boot from the host's scenario. It is read
 * at nvmlInit. Like the real library, this one belongs to one driver version, and refuses a kernel module of another:
 * compile with -DDRIVER_VERSION="\"590.44.01\"" -DCUDA_VERSION=13010.
 *
 * Types and numbers are those of NVML's public interface, as nvidia-ml-py 13.615 calls it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define API __attribute__((visibility("default")))
#define CONFIG "/run/lab/nvml.conf"
#define LOADED "/proc/driver/nvidia/version"
#define MAX_GPUS 16
#define MIB (1ULL << 20)

typedef unsigned long long u64;

enum { /* nvmlReturn_t */
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, VERSION_MISMATCH = 18, ARGUMENT_VERSION = 25,
    UNKNOWN = 999
};

typedef struct { int number; } *Device;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } MemoryV2;
typedef struct { u64 total, free, used; } Bar1;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char bus_id[32];
} PciInfo;
typedef struct { unsigned version, value; } AddressingMode;
typedef struct { unsigned version, sensor; int celsius; } TemperatureV1;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } Process;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency_us;
    unsigned type; /* 1: unsigned int */
    unsigned result;
    union { double real; unsigned whole; u64 wide; } value;
} FieldValue;
typedef struct { unsigned version; char branch[80]; } Branch;

static char text[1 << 18];
static int initialized;
static struct { int number; } devices[MAX_GPUS];
static int shown[MAX_GPUS], shown_count; /* NVML's index -> number of the card */

/* ---- the scenario's values ---- */

static void read_config(void)
{
    FILE *file = fopen(CONFIG, "r");
    size_t length = 0;
    text[0] = '\n';
    if (file) {
        length = fread(text + 1, 1, sizeof text - 2, file);
        fclose(file);
    }
    text[length + 1] = 0;
}

/* The value of "<gpu>.key", or of "key" when gpu < 0; NULL when the file has none. Overwritten after 8 calls. */
static const char *word(int gpu, const char *format, ...)
{
    static __thread char values[8][256];
    static __thread int next;
    char key[96], line[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    if (gpu < 0)
        snprintf(line, sizeof line, "\n%s ", key);
    else
        snprintf(line, sizeof line, "\n%d.%s ", gpu, key);
    const char *found = strstr(text, line);
    if (!found)
        return NULL;
    found += strlen(line);
    char *value = values[next++ & 7];
    snprintf(value, 256, "%.*s", (int)strcspn(found, "\n"), found);
    return value;
}

static long long number(int gpu, const char *key, long long otherwise)
{
    const char *value = word(gpu, "%s", key);
    return value ? strtoll(value, NULL, 0) : otherwise;
}

/* A value may be "unsupported", or "error 999": what NVML would answer instead of the value. */
static int refusal(int gpu, const char *key)
{
    const char *value = word(gpu, "%s", key);
    if (!value)
        return OK;
    if (!strcmp(value, "unsupported"))
        return NOT_SUPPORTED;
    return strncmp(value, "error ", 6) ? OK : atoi(value + 6);
}

/* Set "<gpu>.key" in the file, as a real card keeps it until the driver is loaded again. */
static int store(int gpu, const char *key, unsigned value)
{
    char line[128];
    snprintf(line, sizeof line, "%d.%s ", gpu, key);
    FILE *file = fopen(CONFIG, "w");
    if (!file)
        return NO_PERMISSION;
    for (const char *row = text + 1; *row; row += strcspn(row, "\n") + 1)
        if (strncmp(row, line, strlen(line)))
            fprintf(file, "%.*s\n", (int)strcspn(row, "\n"), row);
    fprintf(file, "%s%u\n", line, value);
    fclose(file);
    read_config();
    return OK;
}

static int copy(char *to, unsigned size, const char *from)
{
    if (!to)
        return INVALID_ARGUMENT;
    if (strlen(from) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return OK;
}

static int check(Device device)
{
    if (!initialized)
        return UNINITIALIZED;
    if (!device)
        return INVALID_ARGUMENT;
    return number(device->number, "lost", 0) ? GPU_IS_LOST : OK;
}

#define REQUIRE(condition) do { int failed_ = (condition); if (failed_) return failed_; } while (0)

static int answer(Device device, const char *key, long long otherwise, unsigned *value)
{
    REQUIRE(check(device));
    REQUIRE(refusal(device->number, key));
    *value = (unsigned)number(device->number, key, otherwise);
    return OK;
}

/* ---- library and system ---- */

/* OK, or how the real library fails without its module, or with one of another version. */
static int compare_with_module(void)
{
    char line[512], version[64];
    FILE *file = fopen(LOADED, "r");
    if (!file)
        return DRIVER_NOT_LOADED;
    const char *got = fgets(line, sizeof line, file);
    fclose(file);
    if (!got)
        return DRIVER_NOT_LOADED;
    for (char *part = strtok(line, " \t\n"); part; part = strtok(NULL, " \t\n"))
        if (sscanf(part, "%63[0-9.]", version) == 1 && strchr(version, '.'))
            return strcmp(version, DRIVER_VERSION) ? VERSION_MISMATCH : OK;
    return UNKNOWN;
}

API int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    read_config();
    REQUIRE(compare_with_module());
    REQUIRE((int)number(-1, "init_error", OK));
    shown_count = 0;
    for (int card = 0; card < MAX_GPUS; card++) {
        devices[card].number = card;
        if (word(card, "bus_id") && number(card, "in_nvml", 1))
            shown[shown_count++] = card;
    }
    initialized++;
    return OK;
}

API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlInit(void) { return nvmlInitWithFlags(0); }

API int nvmlShutdown(void)
{
    if (!initialized)
        return UNINITIALIZED;
    initialized--;
    return OK;
}

API const char *nvmlErrorString(int result)
{
    switch (result) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    case VERSION_MISMATCH: return "Driver/library version mismatch";
    case ARGUMENT_VERSION: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

API int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    return initialized ? copy(version, size, DRIVER_VERSION) : UNINITIALIZED;
}

API int nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
    return initialized ? copy(version, size, "13." DRIVER_VERSION) : UNINITIALIZED;
}

API int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = CUDA_VERSION;
    return initialized ? OK : UNINITIALIZED;
}

API int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

API int nvmlSystemGetDriverBranch(Branch *branch, unsigned size)
{
    char name[16];
    if (!initialized)
        return UNINITIALIZED;
    snprintf(name, sizeof name, "r%.3s_00", DRIVER_VERSION);
    return copy(branch->branch, size < sizeof branch->branch ? size : sizeof branch->branch, name);
}

API int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)shown_count;
    return initialized ? OK : UNINITIALIZED;
}

API int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

/* ---- handles and identity ---- */

static int handle(int index, Device *device)
{
    *device = (Device)&devices[shown[index]];
    return check(*device);
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device)
{
    if (!initialized)
        return UNINITIALIZED;
    return index < (unsigned)shown_count ? handle((int)index, device) : INVALID_ARGUMENT;
}

static int find(const char *key, const char *value, Device *device)
{
    if (!initialized)
        return UNINITIALIZED;
    for (int index = 0; index < shown_count; index++)
        if (!strcasecmp(word(shown[index], "%s", key), value))
            return handle(index, device);
    return NOT_FOUND;
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) { return find("uuid", uuid, device); }
API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, Device *device) { return find("bus_id", id, device); }
API int nvmlDeviceGetHandleBySerial(const char *serial, Device *device) { return find("serial", serial, device); }

static int named(Device device, const char *key, char *to, unsigned size)
{
    REQUIRE(check(device));
    REQUIRE(refusal(device->number, key));
    const char *value = word(device->number, "%s", key);
    return value ? copy(to, size, value) : NOT_SUPPORTED;
}

API int nvmlDeviceGetName(Device d, char *to, unsigned size) { return named(d, "name", to, size); }
API int nvmlDeviceGetUUID(Device d, char *to, unsigned size) { return named(d, "uuid", to, size); }
API int nvmlDeviceGetSerial(Device d, char *to, unsigned size) { return named(d, "serial", to, size); }
API int nvmlDeviceGetVbiosVersion(Device d, char *to, unsigned size) { return named(d, "vbios", to, size); }
API int nvmlDeviceGetMinorNumber(Device d, unsigned *value) { return answer(d, "minor", d ? d->number : 0, value); }

API int nvmlDeviceGetIndex(Device device, unsigned *index)
{
    REQUIRE(check(device));
    for (int at = 0; at < shown_count; at++)
        if (shown[at] == device->number)
            *index = (unsigned)at;
    return OK;
}

API int nvmlDeviceGetPciInfo_v3(Device device, PciInfo *info)
{
    REQUIRE(check(device));
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "%s", word(device->number, "bus_id"));
    sscanf(info->bus_id, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    snprintf(info->legacy, sizeof info->legacy, "%s", info->bus_id + 4);
    info->pci_device = (unsigned)number(device->number, "pci_device", 0);
    info->pci_subsystem = (unsigned)number(device->number, "pci_subsystem", 0);
    return OK;
}

API int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor)
{
    REQUIRE(check(device));
    const char *value = word(device->number, "compute_capability");
    return value && sscanf(value, "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED;
}

/* ---- memory, link, power ---- */

static u64 mib(Device device, const char *key) { return (u64)number(device->number, key, 0) * MIB; }

API int nvmlDeviceGetMemoryInfo(Device device, Memory *memory)
{
    REQUIRE(check(device));
    REQUIRE(refusal(device->number, "memory_mib"));
    memory->total = mib(device, "memory_mib");
    memory->used = mib(device, "memory_used_mib") + mib(device, "memory_reserved_mib");
    memory->free = memory->total - memory->used;
    return OK;
}

API int nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2 *memory)
{
    REQUIRE(check(device));
    REQUIRE(refusal(device->number, "memory_mib"));
    memory->total = mib(device, "memory_mib");
    memory->reserved = mib(device, "memory_reserved_mib");
    memory->used = mib(device, "memory_used_mib");
    memory->free = memory->total - memory->used - memory->reserved;
    return OK;
}

API int nvmlDeviceGetBAR1MemoryInfo(Device device, Bar1 *bar)
{
    REQUIRE(check(device));
    REQUIRE(refusal(device->number, "bar1_mib"));
    bar->total = mib(device, "bar1_mib");
    bar->used = MIB;
    bar->free = bar->total - bar->used;
    return OK;
}

API int nvmlDeviceGetCurrPcieLinkWidth(Device d, unsigned *value) { return answer(d, "link_width", 16, value); }
API int nvmlDeviceGetMaxPcieLinkWidth(Device d, unsigned *value) { return answer(d, "link_width_max", 16, value); }
API int nvmlDeviceGetCurrPcieLinkGeneration(Device d, unsigned *value) { return answer(d, "link_gen", 1, value); }
API int nvmlDeviceGetMaxPcieLinkGeneration(Device d, unsigned *value) { return answer(d, "link_gen_max", 5, value); }
API int nvmlDeviceGetGpuMaxPcieLinkGeneration(Device d, unsigned *value) { return answer(d, "link_gen_card", 5, value); }
API int nvmlDeviceGetPcieReplayCounter(Device d, unsigned *value) { return answer(d, "replays", 0, value); }

API int nvmlDeviceGetPowerUsage(Device d, unsigned *mw) { return answer(d, "power_mw", 33000, mw); }
API int nvmlDeviceGetPowerManagementLimit(Device d, unsigned *mw) { return answer(d, "power_limit_mw", 600000, mw); }
API int nvmlDeviceGetEnforcedPowerLimit(Device d, unsigned *mw) { return answer(d, "power_limit_mw", 600000, mw); }

API int nvmlDeviceGetPowerManagementDefaultLimit(Device d, unsigned *mw)
{
    return answer(d, "power_limit_default_mw", 600000, mw);
}

API int nvmlDeviceGetPowerManagementLimitConstraints(Device d, unsigned *min, unsigned *max)
{
    REQUIRE(answer(d, "power_limit_min_mw", 300000, min));
    return answer(d, "power_limit_max_mw", 600000, max);
}

API int nvmlDeviceSetPowerManagementLimit(Device d, unsigned mw)
{
    unsigned min, max;
    REQUIRE(nvmlDeviceGetPowerManagementLimitConstraints(d, &min, &max));
    return mw < min || mw > max ? INVALID_ARGUMENT : store(d->number, "power_limit_mw", mw);
}

/* ---- state ---- */

API int nvmlDeviceGetPersistenceMode(Device d, unsigned *mode) { return answer(d, "persistence", 0, mode); }

API int nvmlDeviceSetPersistenceMode(Device d, unsigned mode)
{
    REQUIRE(check(d));
    return mode > 1 ? INVALID_ARGUMENT : store(d->number, "persistence", mode);
}

API int nvmlDeviceGetEccMode(Device d, unsigned *current, unsigned *pending)
{
    REQUIRE(answer(d, "ecc", 1, current));
    return answer(d, "ecc_pending", *current, pending);
}

/* type 1: uncorrected; counter 1: since the card was made. The scenario has one number for both counters. */
API int nvmlDeviceGetTotalEccErrors(Device d, unsigned type, unsigned counter, u64 *errors)
{
    unsigned value;
    (void)counter;
    REQUIRE(answer(d, type == 1 ? "ecc_uncorrected" : "ecc_corrected", 0, &value));
    *errors = value;
    return OK;
}

API int nvmlDeviceGetMemoryErrorCounter(Device d, unsigned type, unsigned counter, unsigned where, u64 *errors)
{
    (void)where;
    return nvmlDeviceGetTotalEccErrors(d, type, counter, errors);
}

API int nvmlDeviceGetRemappedRows(Device d, unsigned *correctable, unsigned *other, unsigned *pending, unsigned *failed)
{
    REQUIRE(answer(d, "remapped_correctable", 0, correctable));
    REQUIRE(answer(d, "remapped_uncorrectable", 0, other));
    REQUIRE(answer(d, "remap_pending", 0, pending));
    return answer(d, "remap_failed", 0, failed);
}

API int nvmlDeviceGetMigMode(Device d, unsigned *current, unsigned *pending)
{
    REQUIRE(answer(d, "mig", 0, current));
    return answer(d, "mig_pending", *current, pending);
}

API int nvmlDeviceGetCurrentClocksEventReasons(Device d, u64 *reasons)
{
    unsigned value;
    REQUIRE(answer(d, "clock_event_reasons", 1, &value)); /* 1: idle */
    *reasons = value;
    return OK;
}

API int nvmlDeviceGetCurrentClocksThrottleReasons(Device d, u64 *reasons)
{
    return nvmlDeviceGetCurrentClocksEventReasons(d, reasons);
}

API int nvmlDeviceGetGspFirmwareMode(Device d, unsigned *is_enabled, unsigned *by_default)
{
    REQUIRE(answer(d, "gsp", 1, is_enabled));
    *by_default = 1;
    return OK;
}

API int nvmlDeviceGetGspFirmwareVersion(Device d, char *version)
{
    REQUIRE(check(d));
    const char *value = word(d->number, "gsp_version");
    return copy(version, 64, value ? value : DRIVER_VERSION);
}

API int nvmlDeviceGetAddressingMode(Device d, AddressingMode *mode)
{
    REQUIRE(check(d));
    if (mode->version != (sizeof *mode | 1 << 24))
        return ARGUMENT_VERSION;
    return answer(d, "addressing_mode", 0, &mode->value); /* 0 none, 1 HMM, 2 ATS */
}

API int nvmlDeviceGetTemperature(Device d, unsigned sensor, unsigned *celsius)
{
    return sensor ? INVALID_ARGUMENT : answer(d, "temperature_c", 34, celsius);
}

API int nvmlDeviceGetTemperatureV(Device d, TemperatureV1 *temperature)
{
    if (temperature->version != (sizeof *temperature | 1 << 24))
        return ARGUMENT_VERSION;
    return answer(d, "temperature_c", 34, (unsigned *)&temperature->celsius);
}

API int nvmlDeviceGetUtilizationRates(Device d, Utilization *rates)
{
    REQUIRE(answer(d, "utilization_percent", 0, &rates->gpu));
    return answer(d, "memory_utilization_percent", 0, &rates->memory);
}

API int nvmlDeviceGetPerformanceState(Device d, unsigned *state) { return answer(d, "performance_state", 8, state); }
API int nvmlDeviceGetComputeMode(Device d, unsigned *mode) { return answer(d, "compute_mode", 0, mode); }

/* A value per field, each with a result of its own; 230 is what the driver wants done to recover. */
API int nvmlDeviceGetFieldValues(Device d, int count, FieldValue *values)
{
    REQUIRE(check(d));
    for (int at = 0; at < count; at++) {
        values[at].type = 1;
        values[at].value.wide = 0;
        values[at].result = NOT_SUPPORTED;
        if (values[at].field == 230)
            values[at].result = (unsigned)answer(d, "recovery_action", 0, &values[at].value.whole);
    }
    return OK;
}

static int processes(Device d, const char *key, unsigned *count, Process *into)
{
    unsigned found = 0;
    REQUIRE(check(d));
    for (;; found++) { /* "0.compute.0 <pid> <MiB>" */
        unsigned pid, used;
        const char *row = word(d->number, "%s.%u", key, found);
        if (!row || sscanf(row, "%u %u", &pid, &used) != 2)
            break;
        if (into && found < *count)
            into[found] = (Process){ pid, used * MIB, ~0U, ~0U };
    }
    int result = found > *count ? INSUFFICIENT_SIZE : OK;
    *count = found;
    return result;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(Device d, unsigned *count, Process *into)
{
    return processes(d, "compute", count, into);
}

API int nvmlDeviceGetGraphicsRunningProcesses_v3(Device d, unsigned *count, Process *into)
{
    return processes(d, "graphics", count, into);
}

API int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device d, unsigned *count, Process *into)
{
    return processes(d, "mps", count, into);
}

/* ---- between GPUs ---- */

API int nvmlDeviceGetNumaNodeId(Device d, int *node)
{
    return answer(d, "numa_node", 0, (unsigned *)node);
}

/* 0 the same GPU, 10 one switch, 40 one NUMA node, 50 across nodes. */
API int nvmlDeviceGetTopologyCommonAncestor(Device one, Device two, unsigned *level)
{
    REQUIRE(check(one));
    REQUIRE(check(two));
    int a = one->number, b = two->number;
    if (a == b)
        *level = 0;
    else if (!strcmp(word(a, "switch"), word(b, "switch")))
        *level = 10;
    else
        *level = number(a, "numa_node", 0) == number(b, "numa_node", 0) ? 40 : 50;
    return OK;
}

/* capability: 0 read, 1 write, 2 NVLink, 3 atomics, 4 PCI. */
API int nvmlDeviceGetP2PStatus(Device one, Device two, unsigned capability, unsigned *status)
{
    char key[16];
    REQUIRE(check(one));
    REQUIRE(check(two));
    snprintf(key, sizeof key, "p2p.%d", two->number);
    *status = capability == 2 ? 5 : (unsigned)number(one->number, key, 0);
    return OK;
}

API int nvmlDeviceGetNvLinkState(Device d, unsigned link, unsigned *state)
{
    (void)link, (void)state;
    REQUIRE(check(d));
    return NOT_SUPPORTED;
}

API int nvmlDeviceGetGpuFabricInfo(Device d, void *info)
{
    (void)info;
    REQUIRE(check(d));
    return NOT_SUPPORTED;
}

API int nvmlDeviceGetGpuFabricInfoV(Device d, void *info) { return nvmlDeviceGetGpuFabricInfo(d, info); }
