#include "books_shared.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* A descriptor is an open file description of books.shared whose offset names the memory, and which holds a shared lock
 * on the byte of its place: the kernel drops the lock with the last copy of the descriptor, in whatever process. */

static unsigned index_of(const struct sim_books *books, const struct sim_process *process) {
    return (unsigned)(process - books->processes);
}

static bool holds(const struct sim_shared_memory *memory, unsigned process) {
    return (memory->holders[process / 8] >> process % 8 & 1) != 0;
}

static unsigned count_holders(const struct sim_shared_memory *memory) {
    unsigned count = 0;
    for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
        count += holds(memory, i);
    return count;
}

static void set_holder(struct sim_shared_memory *memory, unsigned process, bool held) {
    unsigned char bit = (unsigned char)(1u << process % 8);
    memory->holders[process / 8] =
        (unsigned char)(held ? memory->holders[process / 8] | bit : memory->holders[process / 8] & ~bit);
}

static struct flock lock_of(int place, short type) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = place, .l_len = 1};
}

static bool has_descriptor(int place) {
    struct flock lock = lock_of(place, F_WRLCK);
    int file = sim_books_open_shared_file();
    bool conflict = file < 0 || fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
    if (file >= 0)
        close(file);
    return conflict;
}

int sim_shared_publish(struct sim_books *books, const struct sim_process *process, unsigned card, uint64_t bytes) {
    (void)sim_shared_sweep(books);
    for (int place = 0; place < SIM_MAX_SHARED; place++) {
        struct sim_shared_memory *memory = &books->shared[place];
        if (memory->serial != 0)
            continue;
        *memory = (struct sim_shared_memory){.serial = ++books->shared_made, .bytes = bytes, .card = card};
        set_holder(memory, index_of(books, process), true);
        return place;
    }
    return -1;
}

void sim_shared_hold(struct sim_books *books, int place, struct sim_process *process) {
    struct sim_shared_memory *memory = &books->shared[place];
    if (holds(memory, index_of(books, process)))
        return;
    set_holder(memory, index_of(books, process), true);
    process->cards[memory->card].used_bytes += memory->bytes;
}

/* Memory that nobody holds and no descriptor stands for is no more. */
static bool end_if_unheld(struct sim_books *books, int place) {
    struct sim_shared_memory *memory = &books->shared[place];
    if (memory->serial == 0 || count_holders(memory) > 0 || has_descriptor(place))
        return false;
    books->cards[memory->card].used_bytes -= memory->bytes;
    memory->serial = 0;
    return true;
}

void sim_shared_drop(struct sim_books *books, int place, struct sim_process *process) {
    struct sim_shared_memory *memory = &books->shared[place];
    set_holder(memory, index_of(books, process), false);
    process->cards[memory->card].used_bytes -= memory->bytes;
    (void)end_if_unheld(books, place);
}

int sim_shared_open(struct sim_books *books, int place) {
    struct flock lock = lock_of(place, F_RDLCK);
    int file = sim_books_open_shared_file();
    off_t name = (off_t)(books->shared[place].serial * SIM_MAX_SHARED + (uint64_t)place);
    if (file >= 0 && (fcntl(file, F_OFD_SETLK, &lock) != 0 || lseek(file, name, SEEK_SET) != name)) {
        close(file);
        file = -1;
    }
    return file;
}

int sim_shared_of(struct sim_books *books, int descriptor) {
    struct stat given, ours;
    int file = sim_books_open_shared_file();
    bool same = file >= 0 && fstat(descriptor, &given) == 0 && fstat(file, &ours) == 0 && given.st_dev == ours.st_dev &&
                given.st_ino == ours.st_ino;
    if (file >= 0)
        close(file);
    off_t name = same ? lseek(descriptor, 0, SEEK_CUR) : -1;
    if (name < 0)
        return -1;
    int place = (int)(name % SIM_MAX_SHARED);
    return books->shared[place].serial != 0 && books->shared[place].serial == (uint64_t)name / SIM_MAX_SHARED ? place
                                                                                                              : -1;
}

void sim_shared_forget(struct sim_books *books, const struct sim_process *process) {
    for (int place = 0; place < SIM_MAX_SHARED; place++)
        set_holder(&books->shared[place], index_of(books, process), false);
}

bool sim_shared_sweep(struct sim_books *books) {
    bool any = false;
    for (int place = 0; place < SIM_MAX_SHARED; place++)
        any |= end_if_unheld(books, place);
    return any;
}

int64_t sim_shared_surplus(const struct sim_books *books, unsigned card) {
    int64_t surplus = 0;
    for (int place = 0; place < SIM_MAX_SHARED; place++) {
        const struct sim_shared_memory *memory = &books->shared[place];
        if (memory->serial != 0 && memory->card == card)
            surplus += ((int64_t)count_holders(memory) - 1) * (int64_t)memory->bytes;
    }
    return surplus;
}
