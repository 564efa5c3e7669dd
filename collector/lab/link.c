// SPDX-License-Identifier: Apache-2.0
// A test link in user space: two tun devices, one in each of two network namespaces, and what the
// path between them does to packets. For kernels without netem; see link.py.
//
//   link NETNS_A NETNS_B DEVICE SEED
//
// Orders come on stdin, a line each: "set NS WAY key=value ..." (NS: CLOCK_MONOTONIC, 0: now; WAY:
// 0 from a to b, 1 back), "counters", "trace FILE". Each gets a line on stdout. It ends with stdin.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>

#include "link_queue.h"

struct change {
    u64 at;
    int way, key;
    s64 value;
};

static struct way ways[2];
static struct change changes[256];
static int change_count, timer, epoll;

// Orders

static void apply(const struct change *c) {
    ((s64 *)&ways[c->way].p)[c->key] = c->value;
}

static void set(char *text) {
    char *rest, *word, *at = strtok_r(text, " ", &rest), *way = strtok_r(NULL, " ", &rest);
    while (at && way && (word = strtok_r(NULL, " ", &rest))) {
        char *value = strchr(word, '=');
        struct change c = {.at = strtoull(at, NULL, 10), .way = *way == '1', .key = -1};
        if (value)
            *value++ = 0;
        for (int i = 0; i < KEY_COUNT; i++)
            if (value && !strcmp(key_names[i], word))
                c.key = i, c.value = strtoll(value, NULL, 10);
        if (c.key < 0 || change_count == 256) {
            printf("%s: refused\n", word);
            return;
        }
        if (c.at)
            changes[change_count++] = c;
        else
            apply(&c);
    }
    printf("ok\n");
}

static void tell(void) {
    printf("[");
    for (struct way *w = ways; w < ways + 2; w++) {
        printf("%s{\"packets\": %lu, \"bytes\": %lu, \"delivered_bytes\": %lu, \"marks\": %lu, "
               "\"queue_most\": %lu, \"queue\": %ld, \"late_most_ns\": %lu, \"late\": %lu",
               w == ways ? "" : ", ", w->packets, w->bytes, w->fate_bytes, w->marks, w->queue_most,
               w->queued, w->late_most, w->late_count);
        for (int i = 0; i < FATE_COUNT; i++)
            if (i != F_waiting)
                printf(", \"%s\": %lu", fate_names[i], w->fates[i]);
        printf("}");
    }
    printf("]\n");
}

static void obey(char *line) {
    if (!strncmp(line, "set ", 4)) {
        set(line + 4);
    } else if (!strncmp(line, "trace ", 6)) {
        FILE *file = fopen(line + 6, "we");
        if (!file || fwrite(notes, sizeof(*notes), note_count, file) != note_count || fclose(file))
            die(line + 6);
        printf("ok\n");
    } else {
        tell();
    }
    fflush(stdout);
}

static void hear(void) {
    static char text[1 << 14];
    static size_t used;
    ssize_t got = read(0, text + used, sizeof(text) - 1 - used);
    if (got <= 0)
        exit(0);
    text[used += got] = 0;
    char *line = text, *stop;
    for (; (stop = strchr(line, '\n')); line = stop + 1) {
        *stop = 0;
        obey(line);
    }
    used -= line - text;
    memmove(text, line, used + 1);
}

// The loop

static int open_tun(const char *netns, const char *device) {
    int space = open(netns, O_RDONLY | O_CLOEXEC), fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    if (fd < 0)
        die("/dev/net/tun");
    if (space < 0 || setns(space, CLONE_NEWNET))
        die(netns);
    strncpy(request.ifr_name, device, IFNAMSIZ - 1);
    close(fd); // a tun belongs to the namespace in which it was opened
    fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request))
        die("TUNSETIFF");
    close(space);
    return fd;
}

static void wake_at(u64 at) {
    struct itimerspec wanted = {.it_value = {at / 1000000000, at % 1000000000}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &wanted, NULL);
}

static void earlier(u64 *next, u64 at) {
    if (at < *next)
        *next = at;
}

static void step(void) {
    static unsigned char bytes[MOST];
    for (struct way *w = ways; w < ways + 2; w++) {
        ssize_t size;
        for (int i = 0; i < 64 && (size = read(w->in, bytes, MOST)) > 0; i++)
            if (size >= 20)
                arrive(w, bytes, size, clock_ns());
    }
    u64 now = clock_ns(), next = now + 1000000000;
    for (int i = 0; i < change_count;)
        if (changes[i].at <= now) {
            apply(&changes[i]);
            memmove(&changes[i], &changes[i + 1], (--change_count - i) * sizeof(*changes));
        } else {
            earlier(&next, changes[i++].at);
        }
    for (struct way *w = ways; w < ways + 2; w++) {
        serve(w, now);
        deliver(w, now);
        if (w->heap_count)
            earlier(&next, w->heap[0]->out_ns);
        if (w->sending && !w->p.held)
            earlier(&next, w->free_at);
        if (w->p.slot && w->head && w->slot_at && !w->p.held)
            earlier(&next, w->slot_at);
    }
    wake_at(next);
}

static void watch(int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
        die("epoll_ctl");
}

int main(int count, char **words) {
    if (count != 5)
        return 2;
    int ends[2] = {open_tun(words[1], words[3]), open_tun(words[2], words[3])};
    random_state = strtoull(words[4], NULL, 10) * 2 + 88172645463325253ull;
    epoll = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    for (int i = 0; i < 2; i++) {
        ways[i].number = i;
        ways[i].in = ends[i];
        ways[i].out = ends[!i];
        watch(ends[i]);
    }
    watch(timer);
    watch(0);
    struct sched_param first = {.sched_priority = 10};
    sched_setscheduler(0, SCHED_FIFO, &first); // where that is refused, it is less exact
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        struct epoll_event events[8];
        int got = epoll_wait(epoll, events, 8, -1);
        for (int i = 0; i < got; i++) {
            u64 ticks;
            if (events[i].data.fd == 0)
                hear();
            else if (events[i].data.fd == timer && read(timer, &ticks, 8) < 0 && errno != EAGAIN)
                die("timerfd");
        }
        step();
    }
}
