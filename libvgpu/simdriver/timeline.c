#include "timeline.h"

/* Notes the busy span in the process's ticks: `busy` of the time from start to end. */
static void note_busy(struct sim_process_card *card, uint64_t start_ns, uint64_t end_ns, unsigned sharers) {
    while (start_ns < end_ns) {
        uint64_t tick = start_ns / SIM_TICK_NS;
        uint64_t tick_end = (tick + 1) * SIM_TICK_NS;
        uint64_t until = end_ns < tick_end ? end_ns : tick_end;
        struct sim_tick *slot = &card->ticks[tick % SIM_TICKS];
        if (slot->number != (uint32_t)tick)
            *slot = (struct sim_tick){.number = (uint32_t)tick};
        slot->busy_ns += (uint32_t)((until - start_ns) / sharers);
        start_ns = until;
    }
}

/* From here on the process's work goes at another speed. */
static void note_turn(struct sim_process_card *card, uint64_t at_ns) {
    if (card->turn_count > 0) {
        struct sim_turn *last = &card->turns[(card->turn_count - 1) % SIM_TURNS];
        if (last->at_ns == at_ns && last->served_ns == card->served_ns)
            return;
    }
    card->turns[card->turn_count++ % SIM_TURNS] = (struct sim_turn){.at_ns = at_ns, .served_ns = card->served_ns};
}

static struct sim_process_card *active_one(struct sim_books *books, unsigned card, unsigned i) {
    return &books->processes[books->cards[card].active[i]].cards[card];
}

static void note_turns(struct sim_books *books, unsigned card, uint64_t at_ns) {
    for (unsigned i = 0; i < books->cards[card].active_count; i++)
        note_turn(active_one(books, card, i), at_ns);
}

/* Those that have nothing left, or ended, give their time to the others. */
static void drop_idle(struct sim_books *books, unsigned card, uint64_t at_ns) {
    struct sim_card_state *state = &books->cards[card];
    unsigned kept = 0;
    for (unsigned i = 0; i < state->active_count; i++) {
        struct sim_process_card *one = active_one(books, card, i);
        if (one->served_ns < one->enqueued_ns)
            state->active[kept++] = state->active[i];
        else
            note_turn(one, at_ns);
    }
    bool changed = kept != state->active_count;
    state->active_count = kept;
    if (changed)
        note_turns(books, card, at_ns);
}

void sim_timeline_advance(struct sim_books *books, unsigned card, uint64_t now_ns) {
    struct sim_card_state *state = &books->cards[card];
    drop_idle(books, card, state->advanced_ns); /* of processes that ended, nothing is left */
    while (state->advanced_ns < now_ns && state->active_count > 0) {
        unsigned sharers = state->active_count;
        uint64_t least = UINT64_MAX, from = state->advanced_ns;
        for (unsigned i = 0; i < sharers; i++) {
            const struct sim_process_card *one = active_one(books, card, i);
            uint64_t left = one->enqueued_ns - one->served_ns;
            least = left < least ? left : least;
        }
        uint64_t each = (now_ns - from) / sharers;
        each = each < least ? each : least;
        uint64_t step = each * sharers;
        if (step == 0)
            break; /* less than a nanosecond for each */
        for (unsigned i = 0; i < sharers; i++) {
            active_one(books, card, i)->served_ns += each;
            note_busy(active_one(books, card, i), from, from + step, sharers);
        }
        state->advanced_ns = from + step;
        drop_idle(books, card, state->advanced_ns);
    }
    if (state->active_count == 0 && state->advanced_ns < now_ns)
        state->advanced_ns = now_ns;
}

static bool is_active(const struct sim_card_state *state, unsigned process) {
    for (unsigned i = 0; i < state->active_count; i++)
        if (state->active[i] == process)
            return true;
    return false;
}

uint64_t sim_timeline_add(struct sim_books *books, unsigned process, unsigned card, uint64_t now_ns,
                          uint64_t duration_ns) {
    struct sim_card_state *state = &books->cards[card];
    struct sim_process_card *own = &books->processes[process].cards[card];
    sim_timeline_advance(books, card, now_ns);
    own->enqueued_ns += duration_ns;
    if (duration_ns > 0 && !is_active(state, process)) {
        state->active[state->active_count++] = (uint16_t)process;
        note_turns(books, card, state->advanced_ns);
    }
    return own->enqueued_ns;
}

/* The last turn before that position was reached, or the oldest that is remembered. */
static struct sim_turn turn_before(const struct sim_process_card *own, uint64_t position) {
    unsigned known = own->turn_count < SIM_TURNS ? own->turn_count : SIM_TURNS;
    struct sim_turn found = {0};
    for (unsigned back = 1; back <= known; back++) {
        found = own->turns[(own->turn_count - back) % SIM_TURNS];
        if (found.served_ns < position)
            break;
    }
    return found;
}

static uint64_t past(const struct sim_process_card *own, uint64_t advanced_ns, uint64_t position) {
    struct sim_turn before = turn_before(own, position);
    if (before.served_ns >= position)
        return before.at_ns;
    /* What came next: another turn, or now. */
    struct sim_turn after = {.at_ns = advanced_ns, .served_ns = own->served_ns};
    unsigned known = own->turn_count < SIM_TURNS ? own->turn_count : SIM_TURNS;
    for (unsigned back = 1; back <= known; back++) {
        struct sim_turn turn = own->turns[(own->turn_count - back) % SIM_TURNS];
        if (turn.served_ns < position)
            break;
        after = turn;
    }
    uint64_t work = after.served_ns - before.served_ns, done = position - before.served_ns;
    return work == 0 ? before.at_ns
                     : before.at_ns + (uint64_t)((__uint128_t)(after.at_ns - before.at_ns) * done / work);
}

/* Everybody's work that is left now, and nothing more: each round ends with the one that has least. */
static uint64_t future(const struct sim_books *books, unsigned process, unsigned card, uint64_t position) {
    const struct sim_card_state *state = &books->cards[card];
    uint64_t wanted = position - books->processes[process].cards[card].served_ns, time = 0;
    for (unsigned i = 0; i < state->active_count; i++) {
        const struct sim_process_card *one = &books->processes[state->active[i]].cards[card];
        uint64_t left = one->enqueued_ns - one->served_ns;
        time += state->active[i] == process || left > wanted ? wanted : left;
    }
    return state->advanced_ns + time;
}

uint64_t sim_timeline_when(struct sim_books *books, unsigned process, unsigned card, uint64_t position) {
    const struct sim_process_card *own = &books->processes[process].cards[card];
    if (position <= own->served_ns)
        return past(own, books->cards[card].advanced_ns, position);
    return future(books, process, card, position);
}
