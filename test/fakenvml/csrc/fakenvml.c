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
    NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMED_OUT = 10,
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
#define FIELD_NVLINK_STATE 165
#define TYPE_UNSIGNED_INT 1
#define TYPE_UNSIGNED_LONG_LONG 3
#define TYPE_SIGNED_INT 5
#define API __attribute__((visibility("default")))

/* ---- the state file ---- */

struct entry { char *key, *value; };
struct xid { int gpu; unsigned long long code; unsigned gi, ci; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char path[4096], calls[4096];
static struct stat seen;
static int have_state;
static char *text;
static struct entry *entries;
static size_t num_entries;
static struct xid *xids;
static size_t num_xids;

static unsigned long long counted; /* calls of nvmlDeviceGetCount, of which a poll makes one */
static int session;          /* nvmlInit minus nvmlShutdown */
static int stale;            /* the driver went away under this session */
static long long epoch;      /* driver.epoch when the session began */

/* A device is a GPU, or a MIG slice of one: its number is the GPU's index plus
 * 256 times one more than the slice's place. */
#define MAX_SLICES 8
#define SLICE(gpu, place) ((gpu) | ((place) + 1) << 8)
#define GPU_OF(number) ((number) & 255)
#define PLACE_OF(number) (((number) >> 8) - 1)
static struct device { int index; } devices[MAX_GPUS], parts[MAX_GPUS][MAX_SLICES];
static int in_flight;        /* calls that were entered and have not left */
static int hanging;          /* those of them that the state file lets hang */
struct event_set { unsigned long long registered; size_t cursor; int waiting; };
struct gpm_sample { int number; };

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

/* "7+2" is 7, and 2 more at each poll. */
static unsigned long long value_of(const char *v) {
    char *rest;
    unsigned long long n = strtoull(v, &rest, 0);
    return *rest == '+' ? n + counted * strtoull(rest + 1, NULL, 0) : n;
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
            struct xid x = {0, 0, 0xFFFFFFFFu, 0xFFFFFFFFu};
            if (sscanf(value, "%d %llu %u %u", &x.gpu, &x.code, &x.gi, &x.ci) < 2) continue;
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

static void key_of(char *key, size_t size, int gpu, const char *name) {
    if (PLACE_OF(gpu) < 0) snprintf(key, size, "gpu.%d.%s", gpu, name);
    else snprintf(key, size, "gpu.%d.mig.%d.%s", GPU_OF(gpu), PLACE_OF(gpu), name);
}

static long long gpu_number(int gpu, const char *name, int *there) {
    char key[128];
    key_of(key, sizeof key, gpu, name);
    const char *v = get(key);
    *there = v && *v;
    return *there ? (long long)value_of(v) : 0;
}

static int hangs(int gpu, const char *function) {
    char key[64];
    const char *v;
    if (gpu < 0) v = get("hang");
    else { key_of(key, sizeof key, GPU_OF(gpu), "hang"); v = get(key); } /* a slice hangs with its GPU */
    return v && (!strcmp(v, "*") || !strcmp(v, function));
}

static void pause_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* Each call with the GPU or slice that it is about, for tests that count them. */
static void trace_call(int gpu, const char *function) {
    FILE *f = *calls ? fopen(calls, "a") : NULL;
    if (!f) return;
    fprintf(f, "%d %s\n", gpu, function);
    fclose(f);
}

/* Records a caller's mistakes, and its opens and closes, for tests. */
static void trace(const char *what) {
    const char *name = getenv("FAKENVML_TRACE");
    FILE *f = name && *name ? fopen(name, "a") : NULL;
    if (!f) return;
    fprintf(f, "%s\n", what);
    fclose(f);
}

/* dwell returns only when the state file no longer lets the call hang. At most
 * hang.limit calls hang at a time; each is traced when it begins to. */
static void dwell(int gpu, const char *function) {
    if (!hangs(gpu, function) || hanging >= number("hang.limit", 1 << 20)) return;
    char what[128];
    snprintf(what, sizeof what, "hang %d %s", gpu < 0 ? -1 : GPU_OF(gpu), function);
    trace(what);
    hanging++;
    while (hangs(gpu, function)) {
        pthread_mutex_unlock(&lock);
        pause_ms(2);
        pthread_mutex_lock(&lock);
        reload();
    }
    hanging--;
}

/* enter takes the lock and says what the call returns before it does anything. */
/* Calls that the driver answers whatever has become of the GPU. */
static const char *identity[] = {"Handle", "UUID", "GetName", "Serial", "PciInfo", "Minor", "Vbios", "Mig", "RegisterEvents"};

static ret_t enter(int gpu, const char *function) {
    char key[160], name[96];
    pthread_mutex_lock(&lock);
    in_flight++;
    trace_call(gpu, function);
    reload();
    dwell(gpu, function);
    if (!session) return UNINITIALIZED;
    if (!driver_loaded()) { stale = 1; return DRIVER_NOT_LOADED; }
    if (stale || number("driver.epoch", 0) != epoch) return UNKNOWN; /* an old session does not see the new driver */
    snprintf(key, sizeof key, "call.%s.return", function);
    ret_t ret = (ret_t)number(key, OK);
    if (ret == OK && gpu >= 0) {
        int there;
        long long present = gpu_number(GPU_OF(gpu), "present", &there);
        if (there && !present) return GPU_IS_LOST;
        snprintf(name, sizeof name, "call.%s.return", function);
        key_of(key, sizeof key, gpu, name);
        ret = (ret_t)number(key, OK);
        key_of(key, sizeof key, gpu, "readings.return");
        for (size_t i = 0; ret == OK; i++) {
            if (i == sizeof identity / sizeof *identity) { ret = (ret_t)number(key, OK); break; }
            if (strstr(function, identity[i])) break;
        }
    }
    return ret;
}

static ret_t leave(ret_t ret) { in_flight--; pthread_mutex_unlock(&lock); return ret; }

static int index_of(void *device) {
    struct device *d = device;
    if (d >= devices && d < devices + MAX_GPUS) return d->index;
    return d >= parts[0] && d < parts[0] + MAX_GPUS * MAX_SLICES ? d->index : -2;
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
    key_of(key, sizeof key, gpu, name);
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
    key_of(key, sizeof key, gpu, name);
    const char *v = get(key);
    if (!v || !*v) return NOT_SUPPORTED;
    *to = value_of(v);
    return OK;
}

/* ---- the API ---- */

API const char *nvmlErrorString(ret_t r) { (void)r; return "fakenvml"; }

static ret_t init(const char *function) {
    ret_t ret;
    pthread_mutex_lock(&lock);
    in_flight++;
    const char *p = getenv("FAKENVML_STATE");
    snprintf(path, sizeof path, "%s", p ? p : "");
    p = getenv("FAKENVML_CALLS");
    snprintf(calls, sizeof calls, "%s", p ? p : "");
    reload();
    dwell(-1, function);
    if (!driver_loaded()) return leave(DRIVER_NOT_LOADED);
    char key[160];
    snprintf(key, sizeof key, "call.%s.return", function);
    if ((ret = (ret_t)number(key, OK)) != OK) return leave(ret);
    if (session++ == 0) {
        stale = 0;
        epoch = number("driver.epoch", 0);
        for (int i = 0; i < MAX_GPUS; i++) {
            devices[i].index = i;
            for (int j = 0; j < MAX_SLICES; j++) parts[i][j].index = SLICE(i, j);
        }
    }
    trace("init");
    return leave(OK);
}

API ret_t nvmlInit_v2(void) { return init("nvmlInit_v2"); }
API ret_t nvmlInit(void) { return init("nvmlInit"); }

API ret_t nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    if (in_flight++) trace("VIOLATION shutdown while a call is in flight");
    reload();
    dwell(-1, __func__);
    if (!session) return leave(UNINITIALIZED);
    session--;
    trace("shutdown");
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
    counted++;
    *n = (unsigned)number("count", 0); /* garbage too, which gpu_count bounds */
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
API ret_t nvmlDeviceGetMinorNumber(void *device, unsigned *to) { ENTER(device); return leave(gpu_u32(gpu, "minor", to)); }
API ret_t nvmlDeviceGetVbiosVersion(void *device, char *to, unsigned n) { ENTER(device); return leave(gpu_text(gpu, "vbios", to, n)); }

#define PCI(function) API ret_t function(void *device, pci_t *pci) { \
    ENTER(device); \
    memset(pci, 0, sizeof *pci); \
    return leave(gpu_text(gpu, "pci", pci->busId, sizeof pci->busId)); \
}
PCI(nvmlDeviceGetPciInfo_v3)
PCI(nvmlDeviceGetPciInfo_v2)
PCI(nvmlDeviceGetPciInfo)

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

/* Some of what a whole GPU tells it does not while it is cut into slices. */
static int is_cut(int gpu) {
    int there;
    return gpu_number(gpu, "mig.mode", &there) == 1;
}

API ret_t nvmlDeviceGetUtilizationRates(void *device, utilization_t *u) {
    ENTER(device);
    if (is_cut(gpu)) return leave(NOT_SUPPORTED);
    if ((ret = gpu_u32(gpu, "utilization.gpu", &u->gpu)) == OK && gpu_u32(gpu, "utilization.memory", &u->memory) != OK) u->memory = 0;
    return leave(ret);
}

/* nvml.h says of each that it is not supported on MIG-enabled GPUs. */
API ret_t nvmlDeviceGetEncoderUtilization(void *device, unsigned *v, unsigned *period) { ENTER(device); *period = 167000; return leave(is_cut(gpu) ? NOT_SUPPORTED : gpu_u32(gpu, "utilization.encoder", v)); }
API ret_t nvmlDeviceGetDecoderUtilization(void *device, unsigned *v, unsigned *period) { ENTER(device); *period = 167000; return leave(is_cut(gpu) ? NOT_SUPPORTED : gpu_u32(gpu, "utilization.decoder", v)); }

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

/* The types that drivers give to fields, as far as they differ from the rest. */
static int field_type(unsigned id) {
    switch (id) {
    case 82: case 94: case 95: case 165: case 186: case 197: case 198: case 230: return TYPE_UNSIGNED_INT;
    case 193: case 194: case 195: case 196: return TYPE_SIGNED_INT;
    default: return TYPE_UNSIGNED_LONG_LONG;
    }
}

static ret_t link_state(int gpu, unsigned link, unsigned *state) {
    char name[64], key[128];
    snprintf(name, sizeof name, "nvlink.%u.up", link);
    key_of(key, sizeof key, gpu, name);
    const char *v = get(key);
    if (v && !strcmp(v, "none")) return NOT_SUPPORTED;
    *state = v && *v ? (unsigned)strtoull(v, NULL, 0) : 1;
    return OK;
}

API ret_t nvmlDeviceGetFieldValues(void *device, int n, field_t *fields) {
    ENTER(device);
    int there;
    long long links = -1, spoiler = gpu_number(gpu, "field.spoiler", &there);
    if (there)
        for (int i = 0; i < n; i++)
            if (fields[i].fieldId == (unsigned)spoiler) return leave(INVALID_ARGUMENT);
    for (int i = 0; i < n; i++) {
        field_t *f = &fields[i];
        char name[64];
        memset(&f->value, 0, sizeof f->value);
        f->valueType = field_type(f->fieldId);
        if (f->fieldId == FIELD_MEMORY_TEMP) {
            f->ret = gpu_u32(gpu, "temperature.memory", &f->value.ui);
            continue;
        }
        if (f->fieldId == FIELD_NVLINK_STATE) {
            /* Hopper and newer tell the state of a link here too. */
            if (links < 0) links = gpu_number(gpu, "nvlink.state.field", &there) == 1 ? gpu_number(gpu, "nvlink.links", &there) : 0;
            f->ret = !links ? NOT_SUPPORTED : f->scopeId >= links ? INVALID_ARGUMENT : OK;
            if (f->ret == OK) f->ret = link_state(gpu, f->scopeId, &f->value.ui);
            continue;
        }
        if (f->scopeId && f->scopeId != 0xFFFFFFFFu) snprintf(name, sizeof name, "field.%u.%u", f->fieldId, f->scopeId);
        else snprintf(name, sizeof name, "field.%u", f->fieldId);
        f->ret = gpu_u64(gpu, name, &f->value.ull);
        if (f->ret != OK) {
            snprintf(name, sizeof name, "field.%u", f->fieldId); /* every link alike */
            f->ret = gpu_u64(gpu, name, &f->value.ull);
        }
        if (f->valueType != TYPE_UNSIGNED_LONG_LONG && f->ret == OK) { unsigned low = (unsigned)f->value.ull; f->value.ull = 0; f->value.ui = low; }
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
    trace("event_set_create");
    return leave(OK);
}

API ret_t nvmlEventSetFree(void *set) {
    pthread_mutex_lock(&lock);
    in_flight++;
    reload();
    dwell(-1, __func__);
    trace(((struct event_set *)set)->waiting ? "VIOLATION event set freed while someone waits" : "event_set_free");
    free(set);
    return leave(OK);
}

API ret_t nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    ENTER(device);
    if (types & ~EVENT_XID) trace("VIOLATION registered for events that nobody reads");
    if (types & EVENT_XID) ((struct event_set *)set)->registered |= 1ULL << gpu;
    return leave(OK);
}

static ret_t event_wait(void *set, event_t *event, unsigned timeout_ms, const char *function) {
    struct event_set *s = set;
    const char *most = getenv("FAKENVML_EVENT_WAIT_MS"); /* whoever closes waits for the wait */
    if (most && timeout_ms > (unsigned)atoi(most)) timeout_ms = (unsigned)atoi(most);
    /* Quick at first, for tests; then rarely, so that it costs an agent that is measured nothing. */
    for (unsigned waited = 0, step;; waited += step) {
        step = waited < 20 ? 2 : 120;
        pthread_mutex_lock(&lock);
        s->waiting = 1;
        pthread_mutex_unlock(&lock);
        ret_t ret = enter(-1, function);
        s->waiting = 0;
        if (ret != OK) return leave(ret);
        if (s->cursor > num_xids) s->cursor = num_xids;
        while (s->cursor < num_xids) {
            struct xid x = xids[s->cursor++];
            if (x.gpu < 0 || x.gpu >= MAX_GPUS || !(s->registered >> x.gpu & 1)) continue;
            memset(event, 0, sizeof *event);
            event->device = &devices[x.gpu];
            event->eventType = EVENT_XID;
            event->eventData = x.code;
            event->gpuInstanceId = x.gi;
            event->computeInstanceId = x.ci;
            return leave(OK);
        }
        if (waited >= timeout_ms) return leave(TIMED_OUT);
        s->waiting = 1;
        pthread_mutex_unlock(&lock);
        pause_ms(step);
        pthread_mutex_lock(&lock);
        s->waiting = 0;
        leave(OK);
    }
}

API ret_t nvmlEventSetWait_v2(void *set, event_t *event, unsigned timeout_ms) { return event_wait(set, event, timeout_ms, __func__); }
API ret_t nvmlEventSetWait(void *set, event_t *event, unsigned timeout_ms) { return event_wait(set, event, timeout_ms, __func__); }

/* ---- what is read once a minute ---- */

typedef struct { unsigned version; int margin; } margin_t;
typedef struct { unsigned version; unsigned long long counts[11]; unsigned exceeded; } sram_t;
typedef struct { unsigned version, channel, tpc; } repair_t;
typedef struct { unsigned environment, feature, devTools; } confidential_t;
typedef struct { unsigned version; unsigned char uuid[16]; ret_t status; unsigned clique; unsigned char state; unsigned mask; } fabric_v2_t;
typedef struct { unsigned version; unsigned char uuid[16]; ret_t status; unsigned clique; unsigned char state; unsigned mask; unsigned char summary; } fabric_v3_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process_t;

_Static_assert(sizeof(sram_t) == 104, "nvmlEccSramErrorStatus_v1_t");
_Static_assert(sizeof(fabric_v3_t) == 40, "nvmlGpuFabricInfo_v3_t");
_Static_assert(sizeof(process_t) == 24, "nvmlProcessInfo_t");

#define GETTER(function, key) API ret_t function(void *device, unsigned *v) { ENTER(device); return leave(gpu_u32(gpu, key, v)); }
GETTER(nvmlDeviceGetPerformanceState, "pstate")
GETTER(nvmlDeviceGetPersistenceMode, "mode.persistence")
GETTER(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width")
GETTER(nvmlDeviceGetMaxPcieLinkWidth, "pcie.width.max")
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.generation")
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.generation.max")
GETTER(nvmlDeviceGetRetiredPagesPendingStatus, "retired.pending")
GETTER(nvmlDeviceGetGpuInstanceId, "gi")
GETTER(nvmlDeviceGetComputeInstanceId, "ci")

#define PAIR(function, key) API ret_t function(void *device, unsigned *v, unsigned *other) { ENTER(device); *other = 0; return leave(gpu_u32(gpu, key, v)); }
PAIR(nvmlDeviceGetEccMode, "mode.ecc")
PAIR(nvmlDeviceGetMigMode, "mig.mode")
PAIR(nvmlDeviceGetGspFirmwareMode, "mode.gsp")

API ret_t nvmlDeviceGetMarginTemperature(void *device, margin_t *m) {
    ENTER(device);
    if (m->version != STRUCT_VERSION(margin_t, 1)) return leave(VERSION_MISMATCH);
    return leave(gpu_u32(gpu, "temperature.margin", (unsigned *)&m->margin));
}

API ret_t nvmlDeviceGetTemperatureThreshold(void *device, int type, unsigned *t) {
    ENTER(device);
    static const char *keys[] = {"temperature.shutdown", "temperature.slowdown", "temperature.memory.max", "temperature.max"};
    if (type < 0 || type > 3) return leave(INVALID_ARGUMENT);
    return leave(gpu_u32(gpu, keys[type], t));
}

API ret_t nvmlDeviceGetMemoryErrorCounter(void *device, int error, int counter, int location, unsigned long long *n) {
    ENTER(device);
    char name[64];
    if (error < 0 || error > 1 || counter < 0 || counter > 1) return leave(INVALID_ARGUMENT);
    if (is_cut(gpu) && !counter) return leave(NOT_SUPPORTED); /* volatile errors are asked of the slices */
    snprintf(name, sizeof name, "ecc.%s.%s.%s", error ? "uncorrected" : "corrected", counter ? "aggregate" : "volatile",
             location == 2 ? "dram" : location == 7 ? "sram" : "other");
    return leave(gpu_u64(gpu, name, n));
}

API ret_t nvmlDeviceGetSramEccErrorStatus(void *device, sram_t *s) {
    ENTER(device);
    if (s->version != STRUCT_VERSION(sram_t, 1)) return leave(VERSION_MISMATCH);
    return leave(gpu_u32(gpu, "sram.threshold_exceeded", &s->exceeded));
}

API ret_t nvmlDeviceGetRepairStatus(void *device, repair_t *r) {
    ENTER(device);
    if (r->version != STRUCT_VERSION(repair_t, 1)) return leave(VERSION_MISMATCH);
    if ((ret = gpu_u32(gpu, "repair.channel", &r->channel)) == OK) ret = gpu_u32(gpu, "repair.tpc", &r->tpc);
    return leave(ret);
}

API ret_t nvmlDeviceGetRetiredPages(void *device, int cause, unsigned *n, unsigned long long *addresses) {
    ENTER(device);
    unsigned there = 0;
    if ((ret = gpu_u32(gpu, cause ? "retired.dbe" : "retired.sbe", &there)) != OK) return leave(ret);
    if (*n < there) { *n = there; return leave(INSUFFICIENT_SIZE); }
    for (unsigned i = 0; i < there; i++) addresses[i] = 4096ULL * i;
    *n = there;
    return leave(OK);
}

API ret_t nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ENTER(device);
    *uncorrected = *pending = *failed = 0;
    if (is_cut(gpu)) return leave(NOT_SUPPORTED); /* while slices exist */
    gpu_u32(gpu, "remapped.uncorrected", uncorrected);
    gpu_u32(gpu, "remapped.pending", pending);
    gpu_u32(gpu, "remapped.failed", failed);
    return leave(gpu_u32(gpu, "remapped.corrected", corrected));
}

API ret_t nvmlSystemGetConfComputeState(confidential_t *c) {
    ret_t ret = enter(-1, __func__);
    if (ret != OK) return leave(ret);
    memset(c, 0, sizeof *c);
    if (!get("confidential_compute")) return leave(NOT_SUPPORTED);
    c->feature = (unsigned)number("confidential_compute", 0);
    return leave(OK);
}

API ret_t nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
    ENTER(device);
    unsigned links;
    if ((ret = gpu_u32(gpu, "nvlink.links", &links)) != OK) return leave(ret);
    if (link >= links) return leave(INVALID_ARGUMENT);
    return leave(link_state(gpu, link, active));
}

API ret_t nvmlDeviceGetGpuFabricInfoV(void *device, fabric_v3_t *f) {
    ENTER(device);
    unsigned state, newest;
    if (gpu_u32(gpu, "fabric.version", &newest) != OK) newest = 3;
    int v3 = f->version == STRUCT_VERSION(fabric_v3_t, 3);
    if (!v3 && f->version != STRUCT_VERSION(fabric_v2_t, 2)) return leave(VERSION_MISMATCH);
    if (v3 && newest < 3) return leave(VERSION_MISMATCH);
    if ((ret = gpu_u32(gpu, "fabric.state", &state)) != OK) return leave(ret);
    f->state = (unsigned char)state;
    f->status = gpu_u32(gpu, "fabric.status", &state) == OK ? (ret_t)state : OK;
    if (gpu_u32(gpu, "fabric.mask", &f->mask) != OK) f->mask = 0;
    if (v3) f->summary = (unsigned char)(gpu_u32(gpu, "fabric.summary", &state) == OK ? state : 0);
    return leave(OK);
}

typedef struct { unsigned char uuid[16]; ret_t status; unsigned clique; unsigned char state; } fabric_t;

API ret_t nvmlDeviceGetGpuFabricInfo(void *device, fabric_t *f) {
    ENTER(device);
    unsigned state;
    if ((ret = gpu_u32(gpu, "fabric.state", &state)) != OK) return leave(ret);
    f->state = (unsigned char)state;
    f->status = gpu_u32(gpu, "fabric.status", &state) == OK ? (ret_t)state : OK;
    return leave(OK);
}

/* Before v2 a process did not say in which instance it runs. */
typedef struct { unsigned pid; unsigned long long memory; } process_v1_t;

static ret_t processes(void *device, const char *function, const char *key, unsigned *n, void *infos) {
    int gpu = index_of(device);
    if (gpu < 0) return INVALID_ARGUMENT;
    unsigned there = 0;
    ret_t ret = enter(gpu, function);
    if (ret != OK || (ret = gpu_u32(gpu, key, &there)) != OK) return leave(ret);
    if (*n < there) { *n = there; return leave(INSUFFICIENT_SIZE); }
    unsigned first;
    if (gpu_u32(gpu, "processes.first", &first) != OK) first = 1000;
    int v1 = function[strlen(function) - 3] != '_';
    for (unsigned i = 0; i < there; i++) {
        if (v1) ((process_v1_t *)infos)[i] = (process_v1_t){first + i, 1 << 20};
        else ((process_t *)infos)[i] = (process_t){first + i, 1 << 20, 0xFFFFFFFFu, 0xFFFFFFFFu};
    }
    *n = there;
    return leave(OK);
}

#define PROCESSES(function, key) API ret_t function(void *device, unsigned *n, void *infos) { return processes(device, __func__, key, n, infos); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "processes.compute")
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "processes.compute")
PROCESSES(nvmlDeviceGetComputeRunningProcesses, "processes.compute")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "processes.graphics")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "processes.graphics")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, "processes.graphics")

/* ---- MIG ---- */

API ret_t nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *n) { ENTER(device); return leave(gpu_u32(gpu, "mig.places", n)); }

API ret_t nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned place, void **slice) {
    ENTER(device);
    char key[64];
    if (place >= MAX_SLICES || PLACE_OF(gpu) >= 0) return leave(INVALID_ARGUMENT);
    key_of(key, sizeof key, SLICE(gpu, (int)place), "uuid");
    if (!get(key)) return leave(NOT_FOUND);
    *slice = &parts[gpu][place];
    return leave(OK);
}

/* ---- GPM ---- */

typedef struct { unsigned version, supported; } gpm_support_t;
typedef struct { unsigned id; ret_t ret; double value; char *names[3]; } gpm_metric_t;
typedef struct { unsigned version, n; struct gpm_sample *first, *second; gpm_metric_t metrics[333]; } gpm_get_t;

API ret_t nvmlGpmQueryDeviceSupport(void *device, gpm_support_t *s) {
    ENTER(device);
    if (gpu_u32(gpu, "gpm.supported", &s->supported) != OK) s->supported = 0;
    return leave(OK);
}

API ret_t nvmlGpmSampleAlloc(struct gpm_sample **sample) {
    ret_t ret = enter(-1, __func__);
    if (ret != OK) return leave(ret);
    *sample = calloc(1, sizeof **sample);
    (*sample)->number = -1;
    trace("gpm_alloc");
    return leave(OK);
}

API ret_t nvmlGpmSampleFree(struct gpm_sample *sample) {
    pthread_mutex_lock(&lock);
    in_flight++;
    reload();
    dwell(-1, __func__);
    trace("gpm_free");
    free(sample);
    return leave(OK);
}

API ret_t nvmlGpmSampleGet(void *device, struct gpm_sample *sample) { ENTER(device); sample->number = gpu; return leave(OK); }

API ret_t nvmlGpmMigSampleGet(void *device, unsigned gi, struct gpm_sample *sample) {
    ENTER(device);
    for (int i = 0; i < MAX_SLICES; i++) {
        int there;
        if (gpu_number(SLICE(gpu, i), "gi", &there) == gi && there) { sample->number = SLICE(gpu, i); return leave(OK); }
    }
    return leave(INVALID_ARGUMENT);
}

API ret_t nvmlGpmMetricsGet(gpm_get_t *g) {
    ret_t ret = enter(-1, __func__);
    if (ret != OK) return leave(ret);
    if (g->version != 1 || g->first->number < 0 || g->first->number != g->second->number) return leave(INVALID_ARGUMENT);
    for (unsigned i = 0; i < g->n; i++) {
        char name[64], key[128];
        snprintf(name, sizeof name, "gpm.%u", g->metrics[i].id);
        key_of(key, sizeof key, g->second->number, name);
        const char *percent = get(key);
        g->metrics[i].ret = percent ? OK : NOT_SUPPORTED;
        g->metrics[i].value = percent ? strtod(percent, NULL) : 0;
    }
    return leave(OK);
}
