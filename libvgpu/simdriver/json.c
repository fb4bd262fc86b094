#include "json.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 32

struct reader {
    const char *text;
    size_t at;
    int depth;
};

static struct sim_json *parse_value(struct reader *r);

static void skip_blanks(struct reader *r) {
    while (r->text[r->at] == ' ' || r->text[r->at] == '\t' || r->text[r->at] == '\n' || r->text[r->at] == '\r')
        r->at++;
}

static bool take(struct reader *r, const char *word) {
    size_t length = strlen(word);
    if (strncmp(r->text + r->at, word, length) != 0)
        return false;
    r->at += length;
    return true;
}

static size_t put_utf8(char *out, unsigned code) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | (code >> 6));
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    out[0] = (char)(0xe0 | (code >> 12));
    out[1] = (char)(0x80 | ((code >> 6) & 0x3f));
    out[2] = (char)(0x80 | (code & 0x3f));
    return 3;
}

/* After the backslash. Surrogate pairs are refused: card names need none. */
static bool parse_escape(struct reader *r, char *out, size_t *length) {
    static const char plain[] = "\"\\/bfnrt";
    static const char meaning[] = "\"\\/\b\f\n\r\t";
    char c = r->text[r->at];
    const char *found = c == '\0' ? NULL : strchr(plain, c);
    if (found != NULL) {
        out[(*length)++] = meaning[found - plain];
        r->at++;
        return true;
    }
    if (c != 'u')
        return false;
    unsigned code = 0;
    for (size_t i = 1; i <= 4; i++) {
        unsigned char digit = (unsigned char)r->text[r->at + i];
        if (!isxdigit(digit))
            return false;
        code = code * 16 + (unsigned)(isdigit(digit) ? digit - '0' : tolower(digit) - 'a' + 10);
    }
    if (code == 0 || (code >= 0xd800 && code < 0xe000))
        return false;
    *length += put_utf8(out + *length, code);
    r->at += 5;
    return true;
}

static char *parse_string(struct reader *r) {
    if (r->text[r->at] != '"')
        return NULL;
    r->at++;
    char *out = malloc(strlen(r->text + r->at) + 1); /* escapes only shrink */
    size_t length = 0;
    if (out == NULL)
        return NULL;
    for (;;) {
        char c = r->text[r->at];
        if (c == '"') {
            r->at++;
            out[length] = '\0';
            return out;
        }
        if ((unsigned char)c < 0x20)
            break;
        r->at++;
        if (c != '\\')
            out[length++] = c;
        else if (!parse_escape(r, out, &length))
            break;
    }
    free(out);
    return NULL;
}

static bool parse_members(struct reader *r, struct sim_json *parent, char end) {
    struct sim_json **tail = &parent->first;
    skip_blanks(r);
    if (r->text[r->at] == end) {
        r->at++;
        return true;
    }
    for (;;) {
        char *key = NULL;
        skip_blanks(r);
        if (end == '}') {
            key = parse_string(r);
            if (key == NULL)
                return false;
            skip_blanks(r);
            if (r->text[r->at] != ':') {
                free(key);
                return false;
            }
            r->at++;
        }
        struct sim_json *child = parse_value(r);
        if (child == NULL) {
            free(key);
            return false;
        }
        child->key = key;
        *tail = child;
        tail = &child->next;
        skip_blanks(r);
        char c = r->text[r->at];
        if (c != ',' && c != end)
            return false;
        r->at++;
        if (c == end)
            return true;
    }
}

static bool parse_number(struct reader *r, struct sim_json *value) {
    const char *start = r->text + r->at;
    char *end = NULL;
    if (*start != '-' && !isdigit((unsigned char)*start))
        return false;
    value->kind = SIM_JSON_NUMBER;
    value->number = strtod(start, &end);
    r->at += (size_t)(end - start);
    return end != start;
}

static bool parse_into(struct reader *r, struct sim_json *value) {
    char c = r->text[r->at];
    if (c == '{' || c == '[') {
        value->kind = c == '{' ? SIM_JSON_OBJECT : SIM_JSON_ARRAY;
        r->at++;
        return parse_members(r, value, c == '{' ? '}' : ']');
    }
    if (c == '"') {
        value->kind = SIM_JSON_STRING;
        value->text = parse_string(r);
        return value->text != NULL;
    }
    if (c == 't' || c == 'f') {
        value->kind = SIM_JSON_BOOL;
        value->boolean = c == 't';
        return take(r, c == 't' ? "true" : "false");
    }
    if (c == 'n')
        return take(r, "null");
    return parse_number(r, value);
}

static struct sim_json *parse_value(struct reader *r) {
    struct sim_json *value = calloc(1, sizeof *value);
    if (value == NULL)
        return NULL;
    skip_blanks(r);
    bool parsed = ++r->depth <= MAX_DEPTH && parse_into(r, value);
    r->depth--;
    if (!parsed) {
        sim_json_free(value);
        return NULL;
    }
    return value;
}

struct sim_json *sim_json_parse(const char *text, size_t *error_at) {
    struct reader r = {.text = text};
    struct sim_json *value = parse_value(&r);
    if (value != NULL) {
        skip_blanks(&r);
        if (text[r.at] != '\0') {
            sim_json_free(value);
            value = NULL;
        }
    }
    *error_at = r.at;
    return value;
}

void sim_json_free(struct sim_json *value) {
    while (value != NULL) {
        struct sim_json *next = value->next;
        sim_json_free(value->first);
        free(value->text);
        free(value->key);
        free(value);
        value = next;
    }
}

const struct sim_json *sim_json_member(const struct sim_json *object, const char *key) {
    const struct sim_json *found = NULL;
    for (const struct sim_json *child = object->first; child != NULL; child = child->next)
        if (child->key != NULL && strcmp(child->key, key) == 0)
            found = child;
    return found;
}
