/* SPDX-License-Identifier: Apache-2.0
 *
 * A libnvidia-ml.so.1 for machines without a GPU. It answers from a text file
 * of "key value" lines, named by FAKENVML_STATE, which it reads again whenever
 * the file changes. README.md beside this directory lists the keys.
 *
 * The declarations below follow the public ABI of NVML (nvml.h as shipped with
 * go-nvml); only what the fake needs is declared.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef int ret_t;
enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMED_OUT = 10,
    GPU_IS_LOST = 15, VERSION_MISMATCH = 25, UNKNOWN = 999
};

typedef struct { char busIdLegacy[16]; unsigned domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; } pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned version; int sensor; int temperature; } temperature_t;
typedef union { double d; int si; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; unsigned short us; } value_t;
typedef struct { unsigned fieldId, scopeId; long long timestamp, latencyUsec; int valueType; ret_t ret; value_t value; } field_t;
typedef struct { void *device; unsigned long long eventType, eventData; unsigned gpuInstanceId, computeInstanceId; } event_t;

_Static_assert(sizeof(pci_t) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(memory_t) == 24, "nvmlMemory_t");
_Static_assert(sizeof(memory_v2_t) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(temperature_t) == 12, "nvmlTemperature_v1_t");
_Static_assert(sizeof(field_t) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(event_t) == 32, "nvmlEventData_t");

/* A versioned struct carries its size and version (nvml.h, NVML_STRUCT_VERSION). */
#define STRUCT_VERSION(type, v) ((unsigned)(sizeof(type) | ((unsigned)(v) << 24)))

#define MAX_GPUS 64
#define EVENT_XID 8ULL
#define FIELD_MEMORY_TEMP 82
#define TYPE_UNSIGNED_INT 1
#define API __attribute__((visibility("default")))

/* ---- the state file ---- */

struct entry { char *key, *value; };
struct xid { int gpu; unsigned long long code; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char path[4096];
static struct stat seen;
static int have_state;
static char *text;
static struct entry *entries;
static size_t num_entries;
static struct xid *xids;
static size_t num_xids;

static int session;          /* nvmlInit minus nvmlShutdown */
static int stale;            /* the driver went away under this session */
static long long epoch;      /* driver.epoch when the session began */

static struct device { int index; } devices[MAX_GPUS];
struct event_set { unsigned long long registered; size_t cursor; };

static int by_key(const void *a, const void *b) { return strcmp(((const struct entry *)a)->key, ((const struct entry *)b)->key); }

/* All functions below up to the API hold the lock. */

static const char *get(const char *key) {
    struct entry want = {(char *)key, NULL};
    struct entry *e = num_entries ? bsearch(&want, entries, num_entries, sizeof *entries, by_key) : NULL;
    return e ? e->value : NULL;
}

static long long number(const char *key, long long otherwise) {
    const char *v = get(key);
    return v && *v ? strtoll(v, NULL, 0) : otherwise;
}

static void parse(char *contents) {
    size_t cap = 0, xcap = 0;
    free(text);
    free(entries);
    free(xids);
    text = contents;
    entries = NULL;
    xids = NULL;
    num_entries = num_xids = 0;
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        line += strspn(line, " \t");
        if (!*line || *line == '#') continue;
        char *value = line + strcspn(line, " \t");
        if (*value) { *value++ = 0; value += strspn(value, " \t"); }
        if (!strcmp(line, "xid")) {
            struct xid x = {0, 0};
            if (sscanf(value, "%d %llu", &x.gpu, &x.code) != 2) continue;
            if (num_xids == xcap) xids = realloc(xids, (xcap = xcap * 2 + 16) * sizeof *xids);
            xids[num_xids++] = x;
            continue;
        }
        if (num_entries == cap) entries = realloc(entries, (cap = cap * 2 + 64) * sizeof *entries);
        entries[num_entries++] = (struct entry){line, value};
    }
    if (num_entries) qsort(entries, num_entries, sizeof *entries, by_key);
}

static void reload(void) {
    struct stat now;
    if (stat(path, &now) != 0) { have_state = 0; memset(&seen, 0, sizeof seen); return; }
    if (have_state && now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
    FILE *f = fopen(path, "r");
    if (!f) { have_state = 0; return; }
    fstat(fileno(f), &now); /* of the file that is read, should it be renamed over just now */
    char *contents = calloc(1, (size_t)now.st_size + 1);
    size_t n = fread(contents, 1, (size_t)now.st_size, f);
    contents[n] = 0;
    fclose(f);
    parse(contents);
    seen = now;
    have_state = 1;
}

static int driver_loaded(void) { return have_state && number("driver.loaded", 1) != 0; }

static int gpu_count(void) {
    long long n = number("count", 0);
    return n < 0 ? 0 : n > MAX_GPUS ? MAX_GPUS : (int)n;
}

static long long gpu_number(int gpu, const char *name, int *there) {
    char key[128];
    snprintf(key, sizeof key, "gpu.%d.%s", gpu, name);
    const char *v = get(key);
    *there = v && *v;
    return *there ? strtoll(v, NULL, 0) : 0;
}

static int hangs(int gpu, const char *function) {
    char key[64];
    const char *v;
    if (gpu < 0) v = get("hang");
    else { snprintf(key, sizeof key, "gpu.%d.hang", gpu); v = get(key); }
    return v && (!strcmp(v, "*") || !strcmp(v, function));
}

static void pause_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* enter takes the lock and says what the call returns before it does anything.
 * It returns only when the state file no longer lets the call hang. */
static ret_t enter(int gpu, const char *function) {
    char key[160];
    pthread_mutex_lock(&lock);
    reload();
    while (hangs(gpu, function)) {
        pthread_mutex_unlock(&lock);
        pause_ms(2);
        pthread_mutex_lock(&lock);
        reload();
    }
    if (!session) return UNINITIALIZED;
    if (!driver_loaded()) { stale = 1; return DRIVER_NOT_LOADED; }
    if (stale || number("driver.epoch", 0) != epoch) return UNKNOWN; /* an old session does not see the new driver */
    snprintf(key, sizeof key, "call.%s.return", function);
    ret_t ret = (ret_t)number(key, OK);
    if (ret == OK && gpu >= 0) {
        int there;
        long long present = gpu_number(gpu, "present", &there);
        if (there && !present) return GPU_IS_LOST;
        snprintf(key, sizeof key, "gpu.%d.call.%s.return", gpu, function);
        ret = (ret_t)number(key, OK);
    }
    return ret;
}

static ret_t leave(ret_t ret) { pthread_mutex_unlock(&lock); return ret; }

static int index_of(void *device) {
    struct device *d = device;
    return d >= devices && d < devices + MAX_GPUS ? d->index : -2;
}

#define ENTER(device) \
    int gpu = index_of(device); \
    if (gpu < 0) return INVALID_ARGUMENT; \
    ret_t ret = enter(gpu, __func__); \
    if (ret != OK) return leave(ret)

static ret_t copy(const char *from, char *to, unsigned size) {
    if (!from) return NOT_SUPPORTED;
    if (strlen(from) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return OK;
}

static ret_t gpu_text(int gpu, const char *name, char *to, unsigned size) {
    char key[128];
    snprintf(key, sizeof key, "gpu.%d.%s", gpu, name);
    return copy(get(key), to, size);
}

static ret_t gpu_u32(int gpu, const char *name, unsigned *to) {
    int there;
    long long v = gpu_number(gpu, name, &there);
    if (!there) return NOT_SUPPORTED;
    *to = (unsigned)v;
    return OK;
}

static ret_t gpu_u64(int gpu, const char *name, unsigned long long *to) {
    char key[128];
    snprintf(key, sizeof key, "gpu.%d.%s", gpu, name);
    const char *v = get(key);
    if (!v || !*v) return NOT_SUPPORTED;
    *to = strtoull(v, NULL, 0);
    return OK;
}

/* ---- the API ---- */

API const char *nvmlErrorString(ret_t r) { (void)r; return "fakenvml"; }

static ret_t init(const char *function) {
    ret_t ret;
    pthread_mutex_lock(&lock);
    const char *p = getenv("FAKENVML_STATE");
    snprintf(path, sizeof path, "%s", p ? p : "");
    reload();
    while (hangs(-1, function)) {
        pthread_mutex_unlock(&lock);
        pause_ms(2);
        pthread_mutex_lock(&lock);
        reload();
    }
    if (!driver_loaded()) return leave(DRIVER_NOT_LOADED);
    char key[160];
    snprintf(key, sizeof key, "call.%s.return", function);
    if ((ret = (ret_t)number(key, OK)) != OK) return leave(ret);
    if (session++ == 0) {
        stale = 0;
        epoch = number("driver.epoch", 0);
        for (int i = 0; i < MAX_GPUS; i++) devices[i].index = i;
    }
    return leave(OK);
}

API ret_t nvmlInit_v2(void) { return init("nvmlInit_v2"); }
API ret_t nvmlInit(void) { return init("nvmlInit"); }

API ret_t nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    if (!session) return leave(UNINITIALIZED);
    session--;
    return leave(OK);
}

API ret_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    ret_t ret = enter(-1, __func__);
    if (ret != OK) return leave(ret);
    return leave(copy(get("driver.version"), version, length));
}

API ret_t nvmlSystemGetCudaDriverVersion(int *version) {
    ret_t ret = enter(-1, __func__);
    if (ret != OK) return leave(ret);
    if (!get("cuda.version")) return leave(NOT_SUPPORTED);
    *version = (int)number("cuda.version", 0);
    return leave(OK);
}

static ret_t count(unsigned *n, const char *function) {
    ret_t ret = enter(-1, function);
    if (ret != OK) return leave(ret);
    *n = (unsigned)gpu_count();
    return leave(OK);
}

API ret_t nvmlDeviceGetCount_v2(unsigned *n) { return count(n, __func__); }
API ret_t nvmlDeviceGetCount(unsigned *n) { return count(n, __func__); }

static ret_t by_index(unsigned index, void **device, const char *function) {
    if (index >= MAX_GPUS) return INVALID_ARGUMENT;
    ret_t ret = enter((int)index, function);
    if (ret != OK) return leave(ret);
    if ((int)index >= gpu_count()) return leave(INVALID_ARGUMENT);
    *device = &devices[index];
    return leave(OK);
}

API ret_t nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { return by_index(index, device, __func__); }
API ret_t nvmlDeviceGetHandleByIndex(unsigned index, void **device) { return by_index(index, device, __func__); }

API ret_t nvmlDeviceGetUUID(void *device, char *to, unsigned n) { ENTER(device); return leave(gpu_text(gpu, "uuid", to, n)); }
API ret_t nvmlDeviceGetName(void *device, char *to, unsigned n) { ENTER(device); return leave(gpu_text(gpu, "name", to, n)); }
API ret_t nvmlDeviceGetSerial(void *device, char *to, unsigned n) { ENTER(device); return leave(gpu_text(gpu, "serial", to, n)); }
API ret_t nvmlDeviceGetVbiosVersion(void *device, char *to, unsigned n) { ENTER(device); return leave(gpu_text(gpu, "vbios", to, n)); }

API ret_t nvmlDeviceGetPciInfo_v3(void *device, pci_t *pci) {
    ENTER(device);
    memset(pci, 0, sizeof *pci);
    return leave(gpu_text(gpu, "pci", pci->busId, sizeof pci->busId));
}

API ret_t nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2_t *m) {
    ENTER(device);
    if (m->version != STRUCT_VERSION(memory_v2_t, 2)) return leave(VERSION_MISMATCH);
    m->reserved = 0;
    gpu_u64(gpu, "memory.reserved", &m->reserved);
    if ((ret = gpu_u64(gpu, "memory.total", &m->total)) == OK) ret = gpu_u64(gpu, "memory.used", &m->used);
    m->free = m->total - m->used - m->reserved;
    return leave(ret);
}

API ret_t nvmlDeviceGetMemoryInfo(void *device, memory_t *m) {
    ENTER(device);
    unsigned long long reserved = 0;
    gpu_u64(gpu, "memory.reserved", &reserved);
    if ((ret = gpu_u64(gpu, "memory.total", &m->total)) == OK) ret = gpu_u64(gpu, "memory.used", &m->used);
    m->used += reserved; /* the old call does not tell the two apart */
    m->free = m->total - m->used;
    return leave(ret);
}

API ret_t nvmlDeviceGetUtilizationRates(void *device, utilization_t *u) {
    ENTER(device);
    if ((ret = gpu_u32(gpu, "utilization.gpu", &u->gpu)) == OK && gpu_u32(gpu, "utilization.memory", &u->memory) != OK) u->memory = 0;
    return leave(ret);
}

API ret_t nvmlDeviceGetEncoderUtilization(void *device, unsigned *v, unsigned *period) { ENTER(device); *period = 167000; return leave(gpu_u32(gpu, "utilization.encoder", v)); }
API ret_t nvmlDeviceGetDecoderUtilization(void *device, unsigned *v, unsigned *period) { ENTER(device); *period = 167000; return leave(gpu_u32(gpu, "utilization.decoder", v)); }

API ret_t nvmlDeviceGetTemperatureV(void *device, temperature_t *t) {
    ENTER(device);
    if (t->version != STRUCT_VERSION(temperature_t, 1)) return leave(VERSION_MISMATCH);
    if (t->sensor != 0) return leave(INVALID_ARGUMENT);
    return leave(gpu_u32(gpu, "temperature", (unsigned *)&t->temperature));
}

API ret_t nvmlDeviceGetTemperature(void *device, int sensor, unsigned *t) {
    ENTER(device);
    if (sensor != 0) return leave(INVALID_ARGUMENT);
    return leave(gpu_u32(gpu, "temperature", t));
}

API ret_t nvmlDeviceGetFieldValues(void *device, int n, field_t *fields) {
    ENTER(device);
    for (int i = 0; i < n; i++) {
        field_t *f = &fields[i];
        memset(&f->value, 0, sizeof f->value);
        f->ret = NOT_SUPPORTED;
        if (f->fieldId == FIELD_MEMORY_TEMP) {
            f->valueType = TYPE_UNSIGNED_INT;
            f->ret = gpu_u32(gpu, "temperature.memory", &f->value.ui);
        }
    }
    return leave(OK);
}

API ret_t nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { ENTER(device); return leave(gpu_u32(gpu, "power", mw)); }
API ret_t nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *mw) { ENTER(device); return leave(gpu_u32(gpu, "power.limit", mw)); }

API ret_t nvmlDeviceGetPowerManagementLimitConstraints(void *device, unsigned *lowest, unsigned *highest) {
    ENTER(device);
    *lowest = 0;
    return leave(gpu_u32(gpu, "power.limit.max", highest));
}

API ret_t nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) { ENTER(device); return leave(gpu_u64(gpu, "energy", mj)); }

static const char *clocks[] = {"graphics", "sm", "memory", "video"};

static ret_t clock_of(int gpu, const char *prefix, int type, unsigned *mhz) {
    char name[64];
    if (type < 0 || type > 3) return INVALID_ARGUMENT;
    snprintf(name, sizeof name, "%s.%s", prefix, clocks[type]);
    return gpu_u32(gpu, name, mhz);
}

API ret_t nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz) { ENTER(device); return leave(clock_of(gpu, "clock", type, mhz)); }
API ret_t nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned *mhz) { ENTER(device); return leave(clock_of(gpu, "clock.max", type, mhz)); }

API ret_t nvmlDeviceGetTotalEccErrors(void *device, int error, int counter, unsigned long long *n) {
    ENTER(device);
    char name[64];
    if (error < 0 || error > 1 || counter < 0 || counter > 1) return leave(INVALID_ARGUMENT);
    snprintf(name, sizeof name, "ecc.%s.%s", error ? "uncorrected" : "corrected", counter ? "aggregate" : "volatile");
    return leave(gpu_u64(gpu, name, n));
}

API ret_t nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *bits) { ENTER(device); return leave(gpu_u64(gpu, "throttle", bits)); }
API ret_t nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits) { ENTER(device); return leave(gpu_u64(gpu, "throttle", bits)); }

/* Events. A set sees the xid lines that were added after it was created. */

API ret_t nvmlEventSetCreate(void **set) {
    ret_t ret = enter(-1, __func__);
    if (ret != OK) return leave(ret);
    struct event_set *s = calloc(1, sizeof *s);
    s->cursor = num_xids;
    *set = s;
    return leave(OK);
}

API ret_t nvmlEventSetFree(void *set) { free(set); return OK; }

API ret_t nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    ENTER(device);
    if (types & EVENT_XID) ((struct event_set *)set)->registered |= 1ULL << gpu;
    return leave(OK);
}

API ret_t nvmlEventSetWait_v2(void *set, event_t *event, unsigned timeout_ms) {
    struct event_set *s = set;
    for (unsigned waited = 0;; waited += 2) {
        ret_t ret = enter(-1, __func__);
        if (ret != OK) return leave(ret);
        if (s->cursor > num_xids) s->cursor = num_xids;
        while (s->cursor < num_xids) {
            struct xid x = xids[s->cursor++];
            if (x.gpu < 0 || x.gpu >= MAX_GPUS || !(s->registered >> x.gpu & 1)) continue;
            memset(event, 0, sizeof *event);
            event->device = &devices[x.gpu];
            event->eventType = EVENT_XID;
            event->eventData = x.code;
            event->gpuInstanceId = event->computeInstanceId = 0xFFFFFFFFu;
            return leave(OK);
        }
        leave(OK);
        if (waited >= timeout_ms) return TIMED_OUT;
        pause_ms(2);
    }
}
