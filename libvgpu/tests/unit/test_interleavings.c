/* Every interleaving of a few processes that charge, give back, are refused, reclaim and add up, over the very
 * functions of core/quota.c; each may be killed, or stopped for good, before any touch of what they share.
 *
 * A state is the shared words and what each process has seen so far. Its next touch is made by running its program from
 * the start: what it had seen is told to it again, up to the first touch that is new. States that were met before are
 * not followed again. */
#include <setjmp.h>
#include <stdlib.h>

#include "check.h"
#include "vgpu/shm_layout.h"

#define ACTORS 3
#define TOUCHES 120 /* of one process, at most */
#define TICKET_SHIFT 32

static uint64_t load(const _Atomic uint64_t *word);
static bool swap(_Atomic uint64_t *word, uint64_t *expected, uint64_t wanted);
static void set_bits(_Atomic uint64_t *word, uint64_t bits);
#define VGI_OWN_ACCESS
#include "core/quota.c"

/* ---- what is run ---- */

enum role { ABSENT, WORKER, ADDER };

struct program {
    enum role role;
    unsigned slot;
    uint64_t bytes;
    bool gives_back;
    bool overhead; /* knows no limit */
};

struct scenario {
    const char *name;
    uint64_t limit;
    unsigned kills;     /* how many may be killed in one run */
    unsigned takeovers; /* how often one that lives may be taken over */
    struct program programs[ACTORS];
};

/* ---- a state ---- */

struct seen {
    uint64_t value;
    bool swapped;
};

struct actor {
    struct seen seen[TOUCHES];
    unsigned touches;
    uint64_t trace; /* hash of what it has seen */
    bool done, dead;
    /* What its program knows at this point; made anew by each run of it. */
    uint64_t held, in_flight;
    bool asking, refused;
    unsigned takeovers;
};

struct state {
    uint64_t word, totals[ACTORS];
    struct actor actors[ACTORS];
    bool refusal_is_fair[ACTORS]; /* since it asked there was a moment at which its bytes did not fit */
    unsigned kills;
};

static struct vg_region *region;
static const struct scenario *scenario;
static struct state now;
static unsigned running, cursor;
static bool touched, alone;
static jmp_buf after_touch;
enum { TOUCHED = 1, BLOCKED };

static _Atomic uint64_t *word_now(void) {
    return &vg_extension_of(region)->sums[0].word;
}

/* ---- touching what is shared ---- */

/* Told again (true), or to be made now. A second new touch waits for its turn. */
static bool recall(struct seen **seen) {
    struct actor *actor = &now.actors[running];
    if (cursor < actor->touches) {
        *seen = &actor->seen[cursor++];
        return true;
    }
    if (touched)
        longjmp(after_touch, TOUCHED);
    if (actor->touches == TOUCHES) {
        fprintf(stderr, "%s: a process never comes to an end\n", scenario->name);
        abort();
    }
    *seen = &actor->seen[actor->touches++];
    cursor++;
    touched = true;
    return false;
}

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 29;
}

static const struct seen *note(const struct seen *seen) {
    struct actor *actor = &now.actors[running];
    actor->trace = mix(mix(actor->trace, seen->value), seen->swapped ? 2 : 1);
    return seen;
}

/* Words that only one process touches are no steps: their order changes nothing for others. */
static bool is_private(const _Atomic uint64_t *word) {
    const struct vg_usage *usage =
        &region->slots[now.actors[running].done ? 0 : scenario->programs[running].slot].used[0];
    return word == &usage->context || word == &usage->module || word == &usage->data;
}

static uint64_t load(const _Atomic uint64_t *word) {
    struct seen *seen;
    if (is_private(word))
        return 0;
    if (!recall(&seen))
        *seen = (struct seen){.value = *word};
    return note(seen)->value;
}

static bool swap(_Atomic uint64_t *word, uint64_t *expected, uint64_t wanted) {
    struct seen *seen;
    if (is_private(word))
        return true;
    if (!recall(&seen)) {
        *seen = (struct seen){.value = *word, .swapped = *word == *expected};
        if (seen->swapped)
            *word = wanted;
    }
    *expected = seen->value;
    return note(seen)->swapped;
}

static void set_bits(_Atomic uint64_t *word, uint64_t bits) {
    struct seen *seen;
    if (!recall(&seen)) {
        *seen = (struct seen){.value = *word};
        *word |= bits;
    }
    (void)note(seen);
}

/* Whether that process was killed by now. */
static bool is_killed(unsigned other) {
    struct seen *seen;
    if (!recall(&seen))
        *seen = (struct seen){.value = now.actors[other].dead};
    return note(seen)->value != 0;
}

static unsigned takeovers_of_the_living(void) {
    unsigned sum = 0;
    for (unsigned i = 0; i < ACTORS; i++)
        sum += now.actors[i].takeovers;
    return sum;
}

/* Waits for the word to change. False: the one that is at it was waited for long enough. One that lives
 * is found too slow `takeovers` times in a run, in truth as often as it is. */
static bool await_change(uint64_t word) {
    struct seen *seen;
    struct actor *actor = &now.actors[running];
    if (!recall(&seen)) {
        uint64_t at_it = ((word & VG_USED_MAX) >> TICKET_SHIFT) - 1;
        bool patient = takeovers_of_the_living() >= scenario->takeovers && !alone && !now.actors[at_it].dead;
        if (*word_now() == word && patient) {
            actor->touches--;
            longjmp(after_touch, BLOCKED);
        }
        *seen = (struct seen){.value = *word_now(), .swapped = *word_now() != word};
    }
    actor->takeovers += !seen->swapped;
    return note(seen)->swapped;
}

/* From here on it matters where the process is and how often it took over, no more how it came here: states that differ
 * in that only are one. */
static void at_place(uint64_t place) {
    now.actors[running].trace = mix(place, now.actors[running].takeovers);
}

/* ---- the programs, as account/charge.c and core/region.c have them ---- */

static uint64_t next_ticket(void) {
    return (uint64_t)(running + 1) << TICKET_SHIFT | cursor;
}

static void wait_for_sum(void) {
    uint64_t word = vgi_quota_word(region, 0);
    if ((word & VG_SUM_UNDER_WAY) != 0 && !await_change(word))
        (void)vgi_quota_take_over(region, 0, next_ticket(), word);
}

static void add_up_anew(uint64_t place) {
    while (!vgi_quota_recompute(region, 0, next_ticket())) {
        wait_for_sum();
        at_place(place);
    }
    at_place(place + 1);
}

static enum vgi_charge charge(const struct program *program, uint64_t place) {
    enum vgi_charge result;
    uint64_t limit = program->overhead ? 0 : scenario->limit;
    while ((result = vgi_quota_charge(region, program->slot, 0, VGI_KIND_DATA, program->bytes, limit)) ==
           VGI_RECOMPUTING) {
        wait_for_sum();
        at_place(place);
    }
    at_place(place + 1 + result);
    return result;
}

static void reclaim(void) {
    bool any = false;
    for (unsigned other = 0; other < ACTORS; other++) {
        const struct program *program = &scenario->programs[other];
        _Atomic uint64_t *total = &region->slots[program->slot].used[0].total;
        if (other == running || program->role != WORKER || !is_killed(other))
            continue;
        uint64_t left = load(total);
        if (left == 0)
            continue;
        vgi_quota_mark_inexact(region, 0);
        while (!swap(total, &left, 0))
            ;
        any = true;
    }
    if (any)
        add_up_anew(10);
}

static void work(const struct program *program) {
    struct actor *self = &now.actors[running];
    self->in_flight = program->bytes;
    self->asking = true;
    enum vgi_charge result = charge(program, 20);
    if (result != VGI_CHARGED) {
        reclaim();
        /* Spoilt again and again by others who add up: endless only for a scheduler that wants it so. */
        for (unsigned tries = 0; tries < 2 && (tries == 0 || result == VGI_UNSURE); tries++) {
            add_up_anew(30 + 100 * tries);
            result = charge(program, 40 + 100 * tries);
        }
    }
    bool charged = result == VGI_CHARGED;
    self->asking = false;
    self->in_flight = 0;
    self->refused = result == VGI_REFUSED;
    self->held = charged ? program->bytes : 0;
    if (!charged || !program->gives_back)
        return;
    self->held = 0;
    self->in_flight = program->bytes;
    while (vgi_quota_give_back(region, program->slot, 0, VGI_KIND_DATA, program->bytes) == VGI_RECOMPUTING) {
        wait_for_sum();
        at_place(50);
    }
    at_place(60);
    self->in_flight = 0;
}

/* One touch of that process. False: it can do nothing now. */
static bool step(unsigned index) {
    struct actor *self = &now.actors[index];
    running = index;
    cursor = 0;
    touched = false;
    self->held = self->in_flight = 0;
    self->asking = self->refused = false;
    self->takeovers = 0;
    self->trace = 0;
    int how = setjmp(after_touch);
    if (how != 0)
        return how == TOUCHED;
    if (scenario->programs[index].role == WORKER)
        work(&scenario->programs[index]);
    else
        add_up_anew(70);
    self->done = true;
    return true;
}

/* ---- what must hold ---- */

static const char *trouble(void) {
    uint64_t held = 0, claimed = 0;
    for (unsigned i = 0; i < ACTORS; i++) {
        held += now.actors[i].dead ? 0 : now.actors[i].held;
        claimed += now.actors[i].held + now.actors[i].in_flight;
    }
    for (unsigned i = 0; i < ACTORS; i++) {
        const struct actor *actor = &now.actors[i];
        if (!actor->asking)
            now.refusal_is_fair[i] = now.refusal_is_fair[i] && (actor->refused || actor->done);
        else if (claimed - actor->in_flight + scenario->programs[i].bytes > scenario->limit)
            now.refusal_is_fair[i] = true;
        if (actor->refused && !now.refusal_is_fair[i])
            return "refused though it fitted all the time";
    }
    bool counted = (*word_now() & VG_SUM_UNDER_WAY) == 0;
    if (counted && (*word_now() & VG_USED_MAX) < held)
        return "less is counted than is held";
    bool overhead = false;
    for (unsigned i = 0; i < ACTORS; i++)
        overhead = overhead || scenario->programs[i].overhead;
    return held > scenario->limit && !overhead ? "more is held than the limit" : NULL;
}

static uint64_t slots_now(bool of_the_dead_too) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < ACTORS; i++)
        if (scenario->programs[i].role == WORKER && (of_the_dead_too || !now.actors[i].dead))
            sum += region->slots[scenario->programs[i].slot].used[0].total;
    return sum;
}

/* Nobody has anything left to do: what is counted is what is held, by the slots and, unless it is marked, by the word;
 * and after one more reclaim by the word in any case. */
static const char *trouble_at_end(void) {
    uint64_t held = 0;
    bool exact = (*word_now() & (VG_SUM_INEXACT | VG_SUM_UNDER_WAY)) == 0;
    for (unsigned i = 0; i < ACTORS; i++) {
        if (now.actors[i].dead)
            continue;
        held += now.actors[i].held;
        if (scenario->programs[i].role == WORKER &&
            region->slots[scenario->programs[i].slot].used[0].total != now.actors[i].held)
            return "a slot says something else than its process holds";
    }
    if (exact && now.kills == 0 && (*word_now() & VG_USED_MAX) != slots_now(true))
        return "the sum is wrong and not marked";
    uint64_t after = *word_now();
    if ((after & VG_SUM_UNDER_WAY) != 0 && now.kills == 0)
        return "nobody is at it, but the slots are being added up";
    return slots_now(false) == held ? NULL : "the slots of the living differ from what they hold";
}

/* ---- following all of them ---- */

static uint64_t *met;
static size_t met_capacity, met_count;

static bool insert(uint64_t hash) {
    size_t at = hash & (met_capacity - 1);
    while (met[at] != 0 && met[at] != hash)
        at = (at + 1) & (met_capacity - 1);
    if (met[at] == hash)
        return false;
    met[at] = hash;
    met_count++;
    return true;
}

static bool first_time(void) {
    if (met_count * 2 >= met_capacity) {
        uint64_t *old = met;
        size_t old_capacity = met_capacity;
        met_capacity = met_capacity == 0 ? 1u << 20 : met_capacity * 4;
        met = calloc(met_capacity, sizeof *met);
        met_count = 0;
        for (size_t i = 0; i < old_capacity; i++)
            if (old[i] != 0)
                (void)insert(old[i]);
        free(old);
    }
    uint64_t hash = mix(1, *word_now());
    for (unsigned i = 0; i < ACTORS; i++) {
        const struct actor *actor = &now.actors[i];
        hash = mix(hash, region->slots[i].used[0].total);
        hash = mix(hash, actor->trace);
        hash = mix(hash, actor->done * 4u + actor->dead * 2u + now.refusal_is_fair[i]);
    }
    return insert(hash | 1);
}

static void save(struct state *state) {
    *state = now;
    state->word = *word_now();
    for (unsigned i = 0; i < ACTORS; i++)
        state->totals[i] = region->slots[i].used[0].total;
}

static void restore(const struct state *state) {
    now = *state;
    *word_now() = state->word;
    for (unsigned i = 0; i < ACTORS; i++)
        region->slots[i].used[0].total = state->totals[i];
}

static bool runs(unsigned index) {
    return scenario->programs[index].role != ABSENT && !now.actors[index].done && !now.actors[index].dead;
}

static unsigned failures;

static void fail(const char *why, unsigned depth) {
    if (failures++ < 5)
        fprintf(stderr, "%s, at depth %u: %s (word %#llx)\n", scenario->name, depth, why,
                (unsigned long long)*word_now());
    check_failures++;
}

/* All others stand still for good: it comes to its end all the same, whatever they were doing. */
static void check_alone(unsigned index, unsigned depth) {
    struct state before;
    save(&before);
    alone = true;
    for (unsigned touches = 0; runs(index); touches++)
        if (touches > TOUCHES || !step(index)) {
            fail("held up by one that is stopped", depth);
            break;
        }
    alone = false;
    restore(&before);
}

static void follow(unsigned depth) {
    struct state here;
    bool anyone_runs = false, anyone_moved = false;
    if (!first_time() || failures > 0)
        return;
    const char *why = trouble();
    if (why != NULL)
        fail(why, depth);
    save(&here);
    for (unsigned i = 0; i < ACTORS && failures == 0; i++) {
        if (!runs(i))
            continue;
        anyone_runs = true;
        if (met_count % 8 == 0)
            check_alone(i, depth);
        if (step(i)) {
            anyone_moved = true;
            follow(depth + 1);
        }
        restore(&here);
        if (now.kills < scenario->kills) {
            now.actors[i].dead = true;
            now.kills++;
            follow(depth + 1);
            restore(&here);
        }
    }
    if (anyone_runs && !anyone_moved)
        fail("nobody can go on", depth);
    why = anyone_runs ? NULL : trouble_at_end();
    if (why != NULL)
        fail(why, depth);
}

#define STAYS(slot, bytes) {WORKER, slot, bytes, false, false}
#define COMES_AND_GOES(slot, bytes) {WORKER, slot, bytes, true, false}
#define OVERHEAD(slot, bytes) {WORKER, slot, bytes, true, true}
#define ADDS_UP {ADDER, 0, 0, false, false}

static const struct scenario scenarios[] = {
    {"two come and go", 100, 1, 1, {COMES_AND_GOES(0, 40), COMES_AND_GOES(1, 60)}},
    {"two for the last bytes", 100, 0, 1, {STAYS(0, 60), STAYS(1, 60)}},
    {"two for the last bytes, killed", 100, 1, 1, {COMES_AND_GOES(0, 60), STAYS(1, 60)}},
    {"one adds up, killed", 9000, 1, 0, {COMES_AND_GOES(0, 60), COMES_AND_GOES(1, 70), ADDS_UP}},
    {"two add up, killed", 9000, 1, 0, {COMES_AND_GOES(0, 60), ADDS_UP, ADDS_UP}},
    {"taken over", 9000, 0, 2, {COMES_AND_GOES(0, 60), ADDS_UP}},
    {"its own ghost in the way", 100, 0, 0, {STAYS(0, 60), ADDS_UP, ADDS_UP}},
    {"two threads of a process", 9000, 0, 0, {COMES_AND_GOES(0, 60), COMES_AND_GOES(0, 70), ADDS_UP}},
    {"overhead beyond the limit", 100, 1, 1, {OVERHEAD(0, 70), COMES_AND_GOES(1, 60)}},
    {"three for the last bytes", 100, 0, 0, {STAYS(0, 60), STAYS(1, 60), STAYS(2, 40)}},
};

static unsigned slots_of(const struct scenario *of) {
    unsigned count = 0;
    for (unsigned i = 0; i < ACTORS; i++)
        if (of->programs[i].role == WORKER && of->programs[i].slot >= count)
            count = of->programs[i].slot + 1;
    return count;
}

int main(void) {
    region = calloc(1, VG_FILE_BYTES);
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        struct state start = {.kills = 0};
        scenario = &scenarios[i];
        region->slot_count = (int32_t)slots_of(scenario);
        restore(&start);
        free(met);
        met = NULL;
        met_capacity = met_count = 0;
        failures = 0;
        follow(0);
        printf("%s: %zu states\n", scenario->name, met_count);
        fflush(stdout);
    }
    free(met);
    free(region);
    return check_done();
}
