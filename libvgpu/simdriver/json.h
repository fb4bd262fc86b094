/* A small JSON reader for the driver's description: whole document in memory, strict, bounded depth. */
#ifndef SIM_JSON_H
#define SIM_JSON_H

#include <stdbool.h>
#include <stddef.h>

enum sim_json_kind { SIM_JSON_NULL, SIM_JSON_BOOL, SIM_JSON_NUMBER, SIM_JSON_STRING, SIM_JSON_ARRAY, SIM_JSON_OBJECT };

struct sim_json {
    enum sim_json_kind kind;
    bool boolean;
    double number;
    char *text;             /* of a string, NUL-terminated */
    char *key;              /* of an object's member */
    struct sim_json *first; /* children of an array or object, in order */
    struct sim_json *next;
};

/* Parses `text`. Returns the document, or NULL with `*error_at` set to the offset of the fault. */
struct sim_json *sim_json_parse(const char *text, size_t *error_at);
void sim_json_free(struct sim_json *value);

/* The member of that name (the last one wins), or NULL. */
const struct sim_json *sim_json_member(const struct sim_json *object, const char *key);

#endif
