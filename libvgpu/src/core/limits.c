#include "limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env_names.h"

#define MAX_DIGITS 64 /* digits after the point that are looked at; more are no size anyone means */

static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static const char *skip_blanks(const char *text) {
    while (is_blank(*text))
        text++;
    return text;
}

static int hex_value(char c) {
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* Adds a digit; false on overflow. */
static bool push_digit(uint64_t *value, unsigned base, unsigned digit) {
    return !__builtin_mul_overflow(*value, base, value) && !__builtin_add_overflow(*value, digit, value);
}

/* The shift of a suffix, or -1. `*text` moves past it. */
static int parse_suffix(const char **text) {
    static const char letters[] = "kmgt";
    const char *at = *text;
    char lower = (char)(*at | 0x20);
    const char *letter = *at == '\0' ? NULL : strchr(letters, lower);
    if (letter == NULL || !((*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z')))
        return 0;
    at++;
    if (*at == 'i' || *at == 'I')
        at++;
    if (*at == 'b' || *at == 'B')
        at++;
    *text = at;
    return (int)(letter - letters + 1) * 10;
}

/* fraction/10^digits of 2^shift, rounded down, without leaving 64 bits more than the result needs. */
static uint64_t scale_fraction(const char *digits, size_t count, int shift) {
    uint64_t result = 0;
    /* One binary place at a time: double the decimal fraction, carry the integer part. */
    unsigned char fraction[MAX_DIGITS];
    for (size_t i = 0; i < count; i++)
        fraction[i] = (unsigned char)(digits[i] - '0');
    for (int bit = 0; bit < shift; bit++) {
        unsigned carry = 0;
        for (size_t i = count; i-- > 0;) {
            unsigned doubled = fraction[i] * 2u + carry;
            fraction[i] = (unsigned char)(doubled % 10);
            carry = doubled / 10;
        }
        result = result * 2 + carry;
    }
    return result;
}

const char *vgi_parse_size(const char *text, uint64_t *bytes) {
    uint64_t whole = 0;
    const char *at = skip_blanks(text);
    if (*at == '-')
        return "it is negative";
    if (!is_digit(*at))
        return "it does not begin with a number";
    const char *fraction = "";
    size_t fraction_digits = 0;
    if (at[0] == '0' && (at[1] == 'x' || at[1] == 'X')) {
        at += 2;
        if (hex_value(*at) < 0)
            return "0x is followed by no number";
        for (; hex_value(*at) >= 0; at++)
            if (!push_digit(&whole, 16, (unsigned)hex_value(*at)))
                return "it is too large";
    } else {
        for (; is_digit(*at); at++)
            if (!push_digit(&whole, 10, (unsigned)(*at - '0')))
                return "it is too large";
        if (*at == '.') {
            fraction = ++at;
            while (is_digit(*at))
                at++;
            fraction_digits = (size_t)(at - fraction);
            if (fraction_digits == 0)
                return "no digit follows the point";
            if (fraction_digits > MAX_DIGITS)
                return "it has too many digits after the point";
        }
    }
    at = skip_blanks(at);
    int shift = parse_suffix(&at);
    at = skip_blanks(at);
    if (*at != '\0')
        return "something follows the number that is no suffix of k, m, g, t";
    if (fraction_digits > 0 && shift == 0)
        return "a part of a byte is no size";
    if (shift > 0 && whole > UINT64_MAX >> shift)
        return "it is too large";
    *bytes = (whole << shift) + scale_fraction(fraction, fraction_digits, shift);
    return NULL;
}

const char *vgi_parse_percent(const char *text, uint64_t *percent) {
    uint64_t value = 0;
    const char *at = skip_blanks(text);
    if (!is_digit(*at))
        return "it is no whole number from 0 to 100";
    for (; is_digit(*at); at++)
        if (!push_digit(&value, 10, (unsigned)(*at - '0')) || value > 100)
            return "it is no whole number from 0 to 100";
    if (*skip_blanks(at) != '\0')
        return "something follows the number";
    *percent = value;
    return NULL;
}

struct reader {
    vgi_environment environment;
    char *reason;
    size_t reason_size;
};

/* Unset and blank are the same: no limit stated. */
static const char *stated(const struct reader *r, const char *name) {
    const char *text = r->environment(name);
    return text == NULL || *skip_blanks(text) == '\0' ? NULL : text;
}

typedef const char *(*parser)(const char *, uint64_t *);

static bool read_one(const struct reader *r, const char *name, parser parse, uint64_t *value) {
    const char *text = stated(r, name);
    const char *fault = text == NULL ? NULL : parse(text, value);
    if (fault != NULL)
        snprintf(r->reason, r->reason_size, "%s=\"%.64s\" is no limit: %s", name, text, fault);
    return fault == NULL;
}

/* The common limit, then each card's own. A card's 0 means that it has none of its own. */
static bool read_per_card(const struct reader *r, const char *common_name, const char *prefix, parser parse,
                          uint64_t values[VG_MAX_CARDS]) {
    uint64_t common = 0;
    if (!read_one(r, common_name, parse, &common))
        return false;
    for (int card = 0; card < VG_MAX_CARDS; card++) {
        char name[64];
        uint64_t own = 0;
        snprintf(name, sizeof name, "%s%d", prefix, card);
        if (!read_one(r, name, parse, &own))
            return false;
        values[card] = own != 0 ? own : common;
    }
    return true;
}

/* As C's atoi, which is what these two settings were always read with. */
static int64_t read_integer(const struct reader *r, const char *name, int64_t fallback) {
    const char *text = stated(r, name);
    return text == NULL ? fallback : strtoll(text, NULL, 10);
}

static enum vgi_policy read_policy(const struct reader *r) {
    const char *text = stated(r, VG_ENV_CORE_POLICY);
    if (text != NULL && (strcmp(text, VG_ENV_CORE_POLICY_FORCE) == 0 || strcmp(text, "FORCE") == 0))
        return VGI_POLICY_FORCE;
    if (text != NULL && (strcmp(text, VG_ENV_CORE_POLICY_DISABLE) == 0 || strcmp(text, "DISABLE") == 0))
        return VGI_POLICY_DISABLE;
    return VGI_POLICY_DEFAULT;
}

void vgi_read_settings(vgi_environment environment, struct vgi_limits *limits) {
    struct reader r = {.environment = environment};
    int64_t priority = read_integer(&r, VG_ENV_TASK_PRIORITY, 1);
    limits->priority = (int)(priority > INT32_MAX ? INT32_MAX : priority < INT32_MIN ? INT32_MIN : priority);
    limits->kernel_interval_seconds = read_integer(&r, VG_ENV_KERNEL_INTERVAL, 1);
    limits->policy = read_policy(&r);
}

bool vgi_read_limits(vgi_environment environment, struct vgi_limits *limits, char *reason, size_t reason_size) {
    struct reader r = {environment, reason, reason_size};
    memset(limits, 0, sizeof *limits);
    vgi_read_settings(environment, limits);
    const char *handoff = stated(&r, VG_ENV_HANDOFF);
    if (handoff != NULL && strcmp(handoff, VG_ENV_HANDOFF_PENDING) == 0) {
        snprintf(reason, reason_size, "%s=\"%s\": the container was started before its limits were known",
                 VG_ENV_HANDOFF, handoff);
        return false;
    }
    if (!read_per_card(&r, VG_ENV_MEMORY_LIMIT, VG_ENV_MEMORY_LIMIT_OF, vgi_parse_size, limits->memory_bytes) ||
        !read_per_card(&r, VG_ENV_CORES_LIMIT, VG_ENV_CORES_LIMIT_OF, vgi_parse_percent, limits->cores_percent))
        return false;
    for (int card = 0; card < VG_MAX_CARDS; card++) {
        if (limits->cores_percent[card] == 0)
            limits->cores_percent[card] = 100;
        limits->any_memory = limits->any_memory || limits->memory_bytes[card] != 0;
        limits->any_cores = limits->any_cores || limits->cores_percent[card] != 100;
    }
    return true;
}
