/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * The load of scripts/bench: TCP traffic between two network namespaces, and floods of system calls.
 *
 *     load CLIENT_NETNS_FD SERVER_NETNS_FD ADDRESS PORT
 *
 * The server is a child process, which uses nine ports from PORT on. Orders come on standard input,
 * one a line. The answer to each is a line "COUNT SECONDS CPU_SECONDS", the last of both ends:
 *
 *     pin CLIENT_CPU SERVER_CPU      from now on
 *     pingpong CONNECTIONS SECONDS [BYTES]   64 bytes or so many there and back; COUNT: round trips
 *     bulk SECONDS                   COUNT: bytes
 *     transfer BYTES                 so many, until the server has read the last; COUNT: bytes
 *     stream WRITES BYTES PAUSE_US   writes of so many bytes, each after a pause; until the server
 *                                    has read the last; COUNT: bytes
 *     churn SECONDS                  connect, 64 bytes there and back, close; COUNT: connections
 *     requests SECONDS               the same with 100 times 64 bytes; COUNT: round trips
 *     open CONNECTIONS               opens them and keeps them open; COUNT: open connections
 *     robin SECONDS                  64 bytes there and back on each in turn; COUNT: round trips
 *     getppid SECONDS RATE           system calls, at most RATE a second (0: any); COUNT: calls
 *     receive SECONDS RATE           recv() that finds nothing, the same way
 *     distance CPU CPU               a cache line goes to and fro between them; COUNT: ways
 */
/* clang-format on */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ECHO_PORTS = 8, MESSAGE = 64, BATCH = 256, CHUNK = 64, OPENED_AT_ONCE = 512 };
enum { REQUESTS = 100, BLOCK = 1 << 16, TURNS = 20000 };
/* The kind of a descriptor, in the upper half of its epoll event. */
enum { ECHO, SINK, LISTENER };

static char buffer[1 << 18];
static const char *address;
static int first_port;
static long message;
static int *robin;
static long robins;

static void fail(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* CPU time of both ends so far. */
static double busy(clockid_t server) {
    struct timespec client, other;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &client);
    clock_gettime(server, &other);
    return client.tv_sec + other.tv_sec + (client.tv_nsec + other.tv_nsec) / 1e9;
}

static void pin(pid_t who, int cpu) {
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(who, sizeof(set), &set))
        fail("sched_setaffinity");
}

static struct sockaddr_in at(int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};

    if (inet_pton(AF_INET, address, &a.sin_addr) != 1)
        fail("address");
    return a;
}

static void watch(int epoll, int fd, int kind) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (unsigned)fd | (uint64_t)kind << 32};

    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
        fail("epoll_ctl");
}

static void take_all(int epoll, int listener, int kind) {
    int stream, one = 1;

    while ((stream = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
        setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        watch(epoll, stream, kind);
    }
}

static void serve(int ready) {
    int epoll = epoll_create1(0), one = 1;
    struct epoll_event events[BATCH];

    for (int i = 0; i <= ECHO_PORTS; i++) {
        struct sockaddr_in a = at(first_port + i);
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        if (bind(listener, (void *)&a, sizeof(a)) || listen(listener, 4096))
            fail("listen");
        watch(epoll, listener, LISTENER | (i == ECHO_PORTS));
    }
    if (write(ready, "!", 1) != 1)
        fail("ready");
    for (;;) {
        int count = epoll_wait(epoll, events, BATCH, -1);

        for (int i = 0; i < count; i++) {
            int fd = (int)(uint32_t)events[i].data.u64, kind = events[i].data.u64 >> 32;
            long got;

            if (kind & LISTENER) {
                take_all(epoll, fd, kind & SINK);
                continue;
            }
            got = read(fd, buffer, sizeof(buffer));
            if (got < 0 && errno == EAGAIN)
                continue;
            if (got <= 0 || (kind == ECHO && write(fd, buffer, got) != got))
                close(fd);
        }
    }
}

static int dial(int port) {
    struct sockaddr_in a = at(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

    if (fd < 0 || connect(fd, (void *)&a, sizeof(a)))
        fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

static void send_one(int fd) {
    if (write(fd, buffer, message) != message)
        fail("write");
}

static long receive_one(int fd) {
    long got = 0;

    while (got < message) {
        long more = read(fd, buffer, message - got);

        if (more <= 0)
            fail("read");
        got += more;
    }
    return got;
}

static long pingpong(int connections, double end) {
    int epoll = epoll_create1(0), *fds = calloc(connections, sizeof(int));
    struct epoll_event events[BATCH];
    long trips = 0;

    for (int i = 0; i < connections; i++) {
        fds[i] = dial(first_port);
        watch(epoll, fds[i], ECHO);
        send_one(fds[i]);
    }
    while (now() < end) {
        int count = epoll_wait(epoll, events, BATCH, 1000);

        for (int i = 0; i < count; i++) {
            receive_one((int)(uint32_t)events[i].data.u64);
            send_one((int)(uint32_t)events[i].data.u64);
            trips++;
        }
    }
    for (int i = 0; i < connections; i++)
        close(fds[i]);
    close(epoll);
    free(fds);
    return trips;
}

static long bulk(double end) {
    int fd = dial(first_port + ECHO_PORTS);
    long bytes = 0;

    while (now() < end) {
        long sent = write(fd, buffer, sizeof(buffer));

        if (sent < 0)
            fail("write");
        bytes += sent;
    }
    close(fd);
    return bytes;
}

/* Closes a connection once the server has read all of it. */
static void finish(int fd) {
    if (shutdown(fd, SHUT_WR) || read(fd, buffer, 1))
        fail("the end of a transfer");
    close(fd);
}

static long transfer(long wanted) {
    int fd = dial(first_port + ECHO_PORTS);
    long bytes = 0;

    while (bytes < wanted) {
        long left = wanted - bytes, sent = write(fd, buffer, left < BLOCK ? left : BLOCK);

        if (sent < 0)
            fail("write");
        bytes += sent;
    }
    finish(fd);
    return bytes;
}

/* The pause begins when the write has ended: what a write takes longer, the stream takes longer. */
static long stream(long writes, long pause_us) {
    struct timespec pause = {pause_us / 1000000, pause_us % 1000000 * 1000};
    int fd = dial(first_port + ECHO_PORTS);

    for (long i = 0; i < writes; i++) {
        nanosleep(&pause, 0);
        send_one(fd);
    }
    finish(fd);
    return writes * message;
}

/* Connections of so many round trips each; returns all round trips. */
static long churn(long trips, double end) {
    long count = 0;

    while (now() < end) {
        int fd = dial(first_port);

        for (long i = 0; i < trips; i++, count++) {
            send_one(fd);
            receive_one(fd);
        }
        close(fd);
    }
    return count;
}

static long open_all(long wanted) {
    if (!(robin = realloc(robin, wanted * sizeof(int))))
        fail("memory");
    while (robins < wanted) {
        robin[robins] = dial(first_port + robins % ECHO_PORTS);
        /* An exchange now and then keeps the queues of the listeners short. */
        if (++robins % OPENED_AT_ONCE == 0 || robins == wanted) {
            send_one(robin[robins - 1]);
            receive_one(robin[robins - 1]);
        }
    }
    return robins;
}

static long go_round(double end) {
    static long next;
    long trips = 0;

    while (now() < end) {
        for (int i = 0; i < CHUNK; i++, trips++, next++) {
            int fd = robin[next % robins];

            send_one(fd);
            receive_one(fd);
        }
    }
    return trips;
}

static long flood(int receiving, double seconds, double rate) {
    int fd = receiving ? dial(first_port) : -1;
    double start = now(), end = start + seconds;
    long calls = 0;

    for (double t = start; t < end; t = now()) {
        if (rate && calls > (t - start) * rate)
            continue;
        for (int i = 0; i < CHUNK; i++) {
            if (receiving)
                recv(fd, buffer, 1, MSG_DONTWAIT);
            else
                syscall(SYS_getppid);
        }
        calls += CHUNK;
    }
    if (fd >= 0)
        close(fd);
    return calls;
}

static _Alignas(128) int turn;
static int ends_at[2];

static void *take_turns(void *arg) {
    int me = *(int *)arg == ends_at[1];

    pin(0, ends_at[me]);
    for (int i = 0; i < TURNS; i++) {
        while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) != me)
            ;
        __atomic_store_n(&turn, !me, __ATOMIC_RELEASE);
    }
    return 0;
}

/* Two threads, so that the client stays where it is. */
static long distance(void) {
    pthread_t threads[2];

    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], 0, take_turns, &ends_at[i]))
            fail("thread");
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    return 2 * TURNS;
}

static long obey(const char *line, double start, pid_t server) {
    double seconds, rate;
    long number, other;

    if (sscanf(line, "pin %ld %ld", &number, &other) == 2) {
        pin(0, number);
        pin(server, other);
        return 0;
    }

    if (sscanf(line, "distance %d %d", &ends_at[0], &ends_at[1]) == 2)
        return distance();
    message = MESSAGE;
    if (sscanf(line, "pingpong %ld %lf %ld", &number, &seconds, &message) >= 2)
        return pingpong(number, start + seconds);
    if (sscanf(line, "bulk %lf", &seconds) == 1)
        return bulk(start + seconds);
    if (sscanf(line, "transfer %ld", &number) == 1)
        return transfer(number);
    if (sscanf(line, "stream %ld %ld %ld", &number, &message, &other) == 3)
        return stream(number, other);
    if (sscanf(line, "churn %lf", &seconds) == 1)
        return churn(1, start + seconds);
    if (sscanf(line, "requests %lf", &seconds) == 1)
        return churn(REQUESTS, start + seconds);
    if (sscanf(line, "open %ld", &number) == 1)
        return open_all(number);
    if (sscanf(line, "robin %lf", &seconds) == 1 && robins)
        return go_round(start + seconds);
    if (sscanf(line, "getppid %lf %lf", &seconds, &rate) == 2)
        return flood(0, seconds, rate);
    if (sscanf(line, "receive %lf %lf", &seconds, &rate) == 2)
        return flood(1, seconds, rate);
    fprintf(stderr, "load: unknown order: %s", line);
    exit(2);
}

int main(int argc, char **argv) {
    struct rlimit files;
    int ready[2];
    char line[128], byte;
    clockid_t server_clock;
    pid_t server;

    if (argc != 5)
        return 2;
    address = argv[3];
    first_port = atoi(argv[4]);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    if (pipe(ready))
        fail("pipe");
    server = fork();
    if (!server) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ready[0]);
        if (setns(atoi(argv[2]), CLONE_NEWNET))
            fail("setns");
        serve(ready[1]);
    }
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1)
        return 1;
    if (setns(atoi(argv[1]), CLONE_NEWNET))
        fail("setns");
    if (clock_getcpuclockid(server, &server_clock))
        fail("clock_getcpuclockid");
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        double start = now(), used = busy(server_clock);
        long count = obey(line, start, server);

        printf("%ld %.9f %.9f\n", count, now() - start, busy(server_clock) - used);
        fflush(stdout);
    }
    return 0;
}
