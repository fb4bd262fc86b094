/* The grammar of limits, how the variables combine, and a fuzzer over both. */
#include <inttypes.h>
#include <stdlib.h>

#include "check.h"
#include "core/limits.h"

#define KIB 1024ull
#define MIB (1024ull * KIB)
#define GIB (1024ull * MIB)

static const struct {
    const char *text;
    uint64_t bytes;
} valid[] = {
    {"3000m", 3145728000ull},
    {"1g", GIB},
    {"1G", GIB},
    {"4Gi", 4 * GIB},
    {"4GB", 4 * GIB},
    {"4GiB", 4 * GIB},
    {"1gb", GIB},
    {"1024m", GIB},
    {"2k", 2048},
    {"2T", 2048 * GIB},
    {" 4G ", 4 * GIB},
    {"4 G", 4 * GIB},
    {"\t512m\n", 512 * MIB},
    {"1.5G", 1610612736},
    {"0.5G", GIB / 2},
    {"0.5k", 512},
    {"1.0000000000000000000000000000000000000000000000001k", 1024},
    {"08G", 8589934592},
    {"010g", 10 * GIB},
    {"0x40000000", GIB},
    {"0x10m", 16 * MIB},
    {"123", 123},
    {"0", 0},
    {"0m", 0},
    {"18446744073709551615", UINT64_MAX},
    {"16777215t", 16777215ull << 40},
};

static const char *const invalid[] = {
    "",
    " ",
    "-1",
    "-1m",
    "+1",
    "50%",
    "abc",
    "g",
    "1gib!",
    "10x",
    "1e3",
    "1..5g",
    "1.g",
    ".5g",
    "1.5",
    "1.5.5g",
    "4G4",
    "4GG",
    "4BG",
    "4b",
    "0x",
    "0xg",
    "1,5g",
    "1 2g",
    "1g 2g",
    "nan",
    "inf",
    "99999999999g",
    "18446744073709551616",
    "16777216t",
    "4iG",
    "４g",
    "1\x80m",
};

static void test_sizes(void) {
    for (size_t i = 0; i < sizeof valid / sizeof valid[0]; i++) {
        uint64_t bytes = 7;
        CHECK_THAT(vgi_parse_size(valid[i].text, &bytes) == NULL, valid[i].text);
        CHECK_EQUAL_THAT(bytes, valid[i].bytes, valid[i].text);
    }
    for (size_t i = 0; i < sizeof invalid / sizeof invalid[0]; i++) {
        uint64_t bytes = 7;
        const char *fault = vgi_parse_size(invalid[i], &bytes);
        CHECK_THAT(fault != NULL && *fault != '\0', invalid[i]);
        CHECK_EQUAL_THAT(bytes, 7, invalid[i]);
    }
}

static void test_percents(void) {
    static const char *const refused[] = {"", "-1", "101", "50%", "50m", "1.5", "x", "5 0", "99999999999999999999999"};
    uint64_t percent = 0;
    for (unsigned i = 0; i <= 100; i++) {
        char text[16];
        snprintf(text, sizeof text, " %u ", i);
        CHECK_THAT(vgi_parse_percent(text, &percent) == NULL, text);
        CHECK_EQUAL_THAT(percent, i, text);
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        CHECK_THAT(vgi_parse_percent(refused[i], &percent) != NULL, refused[i]);
}

/* case CMM-01: the values of the case, in its order. Invalid ones refuse to start (`vgi_read_limits` says false, and
 * test_process.c sees cuInit refuse with one line); the empty one is unset (test_precedence). */
static void test_values_of_the_case(void) {
    static const struct {
        const char *text;
        uint64_t bytes; /* 0 = invalid */
    } rows[] = {{"3000m", 3145728000ull},
                {"1g", GIB},
                {"4096M", 4 * GIB},
                {"4Gi", 4 * GIB},
                {"4GB", 4 * GIB},
                {"4GiB", 4 * GIB},
                {" 4G", 4 * GIB},
                {"4G ", 4 * GIB},
                {"1.5G", 1610612736ull},
                {"0.5G", GIB / 2},
                {"08G", 8589934592ull},
                {"50%", 0},
                {"-1", 0},
                {"abc", 0},
                {"17179869184G", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t bytes = 0;
        CHECK_THAT((vgi_parse_size(rows[i].text, &bytes) == NULL) == (rows[i].bytes != 0), rows[i].text);
        CHECK_EQUAL_THAT(bytes, rows[i].bytes, rows[i].text);
    }
}

/* An environment of a few variables. */
static const char *variables[8][2];

static const char *environment(const char *name) {
    for (int i = 0; i < 8 && variables[i][0] != NULL; i++)
        if (strcmp(variables[i][0], name) == 0)
            return variables[i][1];
    return NULL;
}

static void set_environment(const char *const pairs[][2], size_t count) {
    memset(variables, 0, sizeof variables);
    for (size_t i = 0; i < count; i++)
        memcpy(variables[i], pairs[i], sizeof variables[i]);
}

#define SET(...)                                                                                                       \
    do {                                                                                                               \
        static const char *const pairs[][2] = {__VA_ARGS__};                                                           \
        set_environment(pairs, sizeof pairs / sizeof pairs[0]);                                                        \
    } while (0)

static void test_precedence(void) {
    struct vgi_limits limits;
    char reason[256] = "";
    memset(variables, 0, sizeof variables);
    CHECK(vgi_read_limits(environment, &limits, reason, sizeof reason));
    CHECK(!limits.any_memory && !limits.any_cores);
    CHECK_EQUAL(limits.cores_percent[15], 100);
    CHECK_EQUAL(limits.priority, 1);
    CHECK_EQUAL(limits.policy, VGI_POLICY_DEFAULT);

    SET({"CUDA_DEVICE_MEMORY_LIMIT", "1g"}, {"CUDA_DEVICE_MEMORY_LIMIT_1", "2000m"},
        {"CUDA_DEVICE_MEMORY_LIMIT_2", "0"}, {"CUDA_DEVICE_MEMORY_LIMIT_3", ""}, {"CUDA_DEVICE_SM_LIMIT", "30"},
        {"CUDA_DEVICE_SM_LIMIT_2", "0"}, {"CUDA_TASK_PRIORITY", "0"}, {"GPU_CORE_UTILIZATION_POLICY", "FORCE"});
    CHECK(vgi_read_limits(environment, &limits, reason, sizeof reason));
    CHECK_EQUAL(limits.memory_bytes[0], GIB);
    CHECK_EQUAL(limits.memory_bytes[1], 2000 * MIB);
    CHECK_EQUAL(limits.memory_bytes[2], GIB);
    CHECK_EQUAL(limits.memory_bytes[3], GIB);
    CHECK_EQUAL(limits.cores_percent[0], 30);
    CHECK_EQUAL(limits.cores_percent[2], 30);
    CHECK_EQUAL(limits.priority, 0);
    CHECK_EQUAL(limits.policy, VGI_POLICY_FORCE);
}

/* What one variable, or one for all cards and one for card 1, comes to on cards 0 and 1. */
static void test_combinations(void) {
    static const struct {
        const char *common, *own; /* NULL = unset */
        uint64_t memory_0, memory_1;
    } rows[] = {
        {NULL, NULL, 0, 0},     {"", "", 0, 0},        {"0", "0", 0, 0},           {"0m", NULL, 0, 0},
        {"1g", NULL, GIB, GIB}, {NULL, "1g", 0, GIB},  {"2g", "1g", 2 * GIB, GIB}, {"1g", "2g", GIB, 2 * GIB},
        {"1g", "0", GIB, GIB},  {"1g", " ", GIB, GIB}, {"0", "1g", 0, GIB},        {"1g", "0.0m", GIB, GIB},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct vgi_limits limits;
        char reason[256] = "", what[64];
        snprintf(what, sizeof what, "%s and %s", rows[i].common ? rows[i].common : "unset",
                 rows[i].own ? rows[i].own : "unset");
        const char *const pairs[][2] = {{"CUDA_DEVICE_MEMORY_LIMIT", rows[i].common},
                                        {"CUDA_DEVICE_MEMORY_LIMIT_1", rows[i].own}};
        set_environment(pairs, 2);
        CHECK_THAT(vgi_read_limits(environment, &limits, reason, sizeof reason), what);
        CHECK_EQUAL_THAT(limits.memory_bytes[0], rows[i].memory_0, what);
        CHECK_EQUAL_THAT(limits.memory_bytes[1], rows[i].memory_1, what);
        CHECK_EQUAL_THAT(limits.memory_bytes[15], rows[i].memory_0, what);
        CHECK_THAT(limits.any_memory == (rows[i].memory_0 != 0 || rows[i].memory_1 != 0), what);
    }
}

/* Settings that are no limits never refuse: what cannot be understood is the default. */
static void test_settings(void) {
    static const struct {
        const char *name, *text;
        enum vgi_policy policy;
        int priority;
        int64_t interval;
    } rows[] = {
        {"GPU_CORE_UTILIZATION_POLICY", "force", VGI_POLICY_FORCE, 1, 1},
        {"GPU_CORE_UTILIZATION_POLICY", "DISABLE", VGI_POLICY_DISABLE, 1, 1},
        {"GPU_CORE_UTILIZATION_POLICY", "disable", VGI_POLICY_DISABLE, 1, 1},
        {"GPU_CORE_UTILIZATION_POLICY", "Force", VGI_POLICY_DEFAULT, 1, 1},
        {"GPU_CORE_UTILIZATION_POLICY", "default", VGI_POLICY_DEFAULT, 1, 1},
        {"GPU_CORE_UTILIZATION_POLICY", "", VGI_POLICY_DEFAULT, 1, 1},
        {"CUDA_TASK_PRIORITY", "0", VGI_POLICY_DEFAULT, 0, 1},
        {"CUDA_TASK_PRIORITY", "7", VGI_POLICY_DEFAULT, 7, 1},
        {"CUDA_TASK_PRIORITY", "-3", VGI_POLICY_DEFAULT, -3, 1},
        {"CUDA_TASK_PRIORITY", "high", VGI_POLICY_DEFAULT, 0, 1}, /* as atoi */
        {"CUDA_TASK_PRIORITY", "4294967296", VGI_POLICY_DEFAULT, INT32_MAX, 1},
        {"CUDA_TASK_PRIORITY", "-99999999999999999999", VGI_POLICY_DEFAULT, INT32_MIN, 1},
        {"RECORD_KERNEL_INTERVAL", "0", VGI_POLICY_DEFAULT, 1, 0},
        {"RECORD_KERNEL_INTERVAL", "-1", VGI_POLICY_DEFAULT, 1, -1},
        {"RECORD_KERNEL_INTERVAL", "60", VGI_POLICY_DEFAULT, 1, 60},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct vgi_limits limits;
        const char *const pair[][2] = {{rows[i].name, rows[i].text}};
        set_environment(pair, 1);
        vgi_read_settings(environment, &limits);
        CHECK_EQUAL_THAT(limits.policy, rows[i].policy, rows[i].text);
        CHECK_EQUAL_THAT(limits.priority, rows[i].priority, rows[i].text);
        CHECK_EQUAL_THAT(limits.kernel_interval_seconds, rows[i].interval, rows[i].text);
    }
}

static void test_faults_name_the_variable(void) {
    struct vgi_limits limits;
    char reason[256];
    static const char *const rows[][2] = {
        {"CUDA_DEVICE_MEMORY_LIMIT", "50%"}, {"CUDA_DEVICE_MEMORY_LIMIT_15", "-1"}, {"CUDA_DEVICE_SM_LIMIT", "many"},
        {"CUDA_DEVICE_SM_LIMIT_0", "101"},   {"HAMI_HANDOFF", "pending"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        set_environment(&rows[i], 1);
        *reason = '\0';
        CHECK_THAT(!vgi_read_limits(environment, &limits, reason, sizeof reason), rows[i][0]);
        CHECK_THAT(strncmp(reason, rows[i][0], strlen(rows[i][0])) == 0 && strstr(reason, rows[i][1]) != NULL, reason);
    }
    SET({"HAMI_HANDOFF", "done"});
    CHECK(vgi_read_limits(environment, &limits, reason, sizeof reason));
}

/* Environments of any texts: refused with a reason that names one of the variables, or limits in range. */
static void fuzz_environments(void) {
    static const char *const names[] = {
        "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_MEMORY_LIMIT_15", "CUDA_DEVICE_SM_LIMIT",
        "CUDA_DEVICE_SM_LIMIT_3",   "CUDA_TASK_PRIORITY",         "GPU_CORE_UTILIZATION_POLICY", "HAMI_HANDOFF"};
    static const char alphabet[] = "0123456789012345678901234567890.gGmMkKiB %-x";
    uint64_t state = 7;
    for (int round = 0; round < 20000; round++) {
        char texts[8][16], reason[64] = ""; /* too short for some reasons */
        for (int i = 0; i < 8; i++) {
            size_t length = check_random(&state) % 5;
            for (size_t j = 0; j < length; j++)
                texts[i][j] = alphabet[check_random(&state) % (sizeof alphabet - 1)];
            texts[i][length] = '\0';
            variables[i][0] = names[i];
            variables[i][1] = check_random(&state) % 3 == 0 ? NULL : texts[i];
        }
        struct vgi_limits limits;
        if (!vgi_read_limits(environment, &limits, reason, sizeof reason)) {
            CHECK_THAT(strncmp(reason, "CUDA_DEVICE_", 12) == 0, reason);
            continue;
        }
        for (int card = 0; card < VG_MAX_CARDS; card++)
            CHECK(limits.cores_percent[card] >= 1 && limits.cores_percent[card] <= 100);
    }
}

/* Whatever the text, the answer is either a fault or the value that prints back to the same. */
static void fuzz_sizes(void) {
    static const char alphabet[] = "0123456789.xXgGmMkKtTiIbB -+%\t\x80";
    uint64_t state = 20260717;
    for (int round = 0; round < 300000; round++) {
        char text[80];
        size_t length = check_random(&state) % 24;
        for (size_t i = 0; i < length; i++)
            text[i] = alphabet[check_random(&state) % (sizeof alphabet - 1)];
        text[length] = '\0';
        uint64_t bytes = 0, again = 0;
        if (vgi_parse_size(text, &bytes) != NULL)
            continue;
        char printed[32];
        snprintf(printed, sizeof printed, "%" PRIu64, bytes);
        CHECK_THAT(vgi_parse_size(printed, &again) == NULL && again == bytes, text);
        CHECK_THAT(strpbrk(text, "-+%\x80") == NULL, text);
    }
    for (int round = 0; round < 100000; round++) { /* any bytes at all */
        char text[40];
        size_t length = check_random(&state) % sizeof text;
        for (size_t i = 0; i < length; i++)
            text[i] = (char)check_random(&state);
        text[length == 0 ? 0 : length - 1] = '\0';
        uint64_t bytes = 0;
        (void)vgi_parse_size(text, &bytes);
        (void)vgi_parse_percent(text, &bytes);
    }
}

int main(void) {
    test_sizes();
    test_percents();
    test_values_of_the_case();
    test_precedence();
    test_combinations();
    test_settings();
    test_faults_name_the_variable();
    fuzz_environments();
    fuzz_sizes();
    return check_done();
}
