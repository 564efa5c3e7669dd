/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The programs of the schema tty. Each end of a pseudo terminal has a port with a buffer of what
 * the other end wrote; a kernel thread hands it on by the function flush_to_ldisc():
 *
 *     master (sshd, xterm)    -> buffer of the slave's port   -> line discipline -> processes read
 *     master's readers        <- buffer of the master's port  <- processes write, and the echo
 *
 * So a flush of a slave's port is input, and the line discipline tells whether a line is complete.
 * A process that queues a flush of the master's port has written; the kernel thread that flushes
 * the slave's port echoes.
 */
#include "klogger.h"
#include "klogger_task.h"

struct cgroup;
struct cred;
struct css_set;
struct hlist_head;
struct hlist_node;
struct kernfs_node;
struct n_tty_data;
struct pid;
struct signal_struct;
struct tty_buffer;
struct tty_bufhead;
struct tty_driver;
struct tty_ldisc;
struct tty_ldisc_ops;
struct tty_port;
struct tty_struct;
struct work_struct;

enum pid_type;
enum tty_driver_subtype;
enum tty_driver_type;

/* include/linux/tty_driver.h, where it has no enums (before Linux 6.16) */
#ifndef HAVE_enum_tty_driver_type
#define TTY_DRIVER_TYPE_PTY 4
#define PTY_TYPE_MASTER     1
#define PTY_TYPE_SLAVE      2
#endif
/* include/uapi/linux/tty.h, include/linux/sched.h */
#define N_TTY      0
#define PF_KTHREAD 0x200000
#define NO_SESSION ((u32)~0)

#define PORT_OF(work)                                                                              \
    ((struct tty_port *)((u8 *)(work) - __builtin_offsetof(struct tty_port, buf) -                 \
                         __builtin_offsetof(struct tty_bufhead, work)))

/* A slave. */
struct terminal {
    u64 canon_head; /* its input before the flush that runs */
    u64 read_head;
    u64 last; /* where the master's buffer ended after the flush: echo, but no answer */
    u32 used;
    u32 raw;
    u64 open;                  /* an answer is waited for */
    u64 leader;                /* by this session: the process that leads it */
    u64 flushing;              /* 2: a process has written meanwhile */
    struct klogger_task early; /* that process */
};

BPF_TABLE("lru_hash", u64, struct terminal, terminals, 4096);

struct pty {
    struct tty_struct *slave;
    struct tty_port *master;
    int subtype; /* of the port that was asked for; 0: it is no pseudo terminal */
};

/* The pseudo terminal that the work of a port's buffer belongs to. */
static __always_inline struct pty find_pty(const void *work) {
    struct tty_struct *tty = READ(0, PORT_OF(work), itty), *other;
    struct tty_driver *driver;
    struct pty pty = {};

    if (!tty)
        return pty;
    driver = READ(0, tty, driver);
    other = READ(0, tty, link);
    if (!driver || !other || READ(0, driver, type) != TTY_DRIVER_TYPE_PTY)
        return pty;
    pty.subtype = READ(0, driver, subtype);
    pty.slave = pty.subtype == PTY_TYPE_SLAVE ? tty : other;
    pty.master = READ(0, pty.subtype == PTY_TYPE_SLAVE ? other : tty, port);
    return pty;
}

/* The leader of a terminal's session. */
static __always_inline struct klogger_task session_leader(struct tty_struct *tty) {
#ifdef HAVE_tty_struct_ctrl
    struct pid *session = READ(0, tty, ctrl.session);
#else
    struct pid *session = READ(0, tty, session);
#endif
    struct klogger_task found = KLOGGER_NO_TASK;
    struct task_struct *task;
    struct cgroup *group;
    void *link;

    if (!session)
        return found;
    bpf_probe_read_kernel(&link, sizeof(link), &session->tasks[PIDTYPE_TGID]);
    if (!link)
        return found;
    task = (void *)((u8 *)link - __builtin_offsetof(struct task_struct, pid_links) -
                    PIDTYPE_TGID * sizeof(struct hlist_node));
    found.tid = READ(0, task, pid);
    found.tgid = READ(0, task, tgid);
    found.uid = READ(0, READ(0, task, cred), uid.val);
    found.cpu_time = READ(0, task, se.sum_exec_runtime);
    group = READ(0, READ(0, task, cgroups), dfl_cgrp);
    found.cgroup = READ(0, READ(0, group, kn), id);
    return found;
}

static __always_inline u32 device_of(struct tty_struct *tty) {
    struct tty_driver *driver = READ(0, tty, driver);

    return READ(0, driver, major) << 20 | (READ(0, driver, minor_start) + READ(0, tty, index));
}

/* The end of what is in a port's buffer. */
static __always_inline void end_of_buffer(struct tty_port *port, u64 *last, u32 *used) {
    struct tty_buffer *buffer = READ(0, port, buf.tail);

    *last = (u64)buffer;
    *used = buffer ? READ(0, buffer, used) : 0;
}

/* The first output after an input, unless that was typed in another session. */
static __always_inline void answered(void *ctx, struct klogger_cpu *cpu, struct terminal *terminal,
                                     struct tty_struct *slave, struct klogger_task task) {
    if (!__sync_lock_test_and_set(&terminal->open, 0) ||
        terminal->leader != session_leader(slave).tgid)
        return;
    klogger(TRANSACTION_END, KLOGGER_TASK(task), READ(0, slave, index), device_of(slave),
            terminal->raw);
}

/* The kernel thread begins to hand on what is in a port's buffer. */
#if USE_flush_begins
PROBE(flush_begins, "TRANSACTION_START TRANSACTION_END",
      "btf:workqueue_execute_start raw:workqueue_execute_start")
{
    struct work_struct *work = (struct work_struct *)ARG(0);
    struct terminal fresh = {}, *terminal;
    struct n_tty_data *input;
    struct pty pty;
    u64 key, last;
    u32 used;

    if ((u64)READ(DIRECT, work, func) != ADDRESS(flush_to_ldisc))
        return;
    pty = find_pty(work);
    key = (u64)pty.slave;
    if (!key)
        return;
    terminal = terminals.lookup(&key);
    if (pty.subtype == PTY_TYPE_SLAVE) {
        if (!terminal) {
            terminals.update(&key, &fresh);
            terminal = terminals.lookup(&key);
        }
        input = READ(0, pty.slave, disc_data);
        if (terminal && input) {
            terminal->flushing = 1;
            terminal->canon_head = READ(0, input, canon_head);
            terminal->read_head = READ(0, input, read_head);
        }
    } else if (terminal && terminal->open) {
        /* A process wrote while the echo was queued: the flush serves both. */
        end_of_buffer(pty.master, &last, &used);
        if (last != terminal->last || used != terminal->used)
            answered(ctx, cpu, terminal, pty.slave, session_leader(pty.slave));
    }
}
#endif

/* It is done: is there a new line, or in raw mode a new character? The verifier lets no program
 * that is attached by BTF read an argument that is a function.
 */
#if USE_flush_ends
PROBE(flush_ends, "TRANSACTION_START TRANSACTION_END", "raw:workqueue_execute_end")
{
    struct n_tty_data *input;
    struct terminal *terminal;
    struct tty_ldisc *discipline;
    struct klogger_task task;
    struct pty pty;
    u64 key, bits = 0, head, before, early;

    /* (work, function) */
    if (ARG(1) != ADDRESS(flush_to_ldisc) || !ADDRESS(flush_to_ldisc))
        return;
    pty = find_pty((void *)ARG(0));
    key = (u64)pty.slave;
    if (!key || pty.subtype != PTY_TYPE_SLAVE)
        return;
    terminal = terminals.lookup(&key);
    input = READ(0, pty.slave, disc_data);
    discipline = READ(0, pty.slave, ldisc);
    if (!terminal || !input || !discipline || READ(0, READ(0, discipline, ops), num) != N_TTY)
        return;
    bpf_probe_read_kernel(&bits, BITS_n_tty_data_icanon_SIZE,
                          (u8 *)input + BITS_n_tty_data_icanon_OFFSET);
    if (BITS_n_tty_data_icanon(bits)) {
        head = READ(0, input, canon_head);
        before = terminal->canon_head;
    } else {
        head = READ(0, input, read_head);
        before = terminal->read_head;
    }
    end_of_buffer(pty.master, &terminal->last, &terminal->used);
    early = __sync_lock_test_and_set(&terminal->flushing, 0);
    if (head == before)
        return;
    terminal->raw = !BITS_n_tty_data_icanon(bits);
    task = session_leader(pty.slave);
    terminal->leader = task.tgid;
    klogger(TRANSACTION_START, KLOGGER_TASK(task), READ(0, pty.slave, index), device_of(pty.slave),
            terminal->raw);
    terminal->open = 1;
    /* The reader was woken within the flush, and may run before the rest of it. */
    if (early == 2)
        answered(ctx, cpu, terminal, pty.slave, terminal->early);
}
#endif

/* Something is put into a port's buffer: the process that puts it there is the current one. */
#if USE_output
PROBE(output, "TRANSACTION_END", "btf:workqueue_queue_work raw:workqueue_queue_work")
{
    /* (cpu, pool, work) */
    struct work_struct *work = (struct work_struct *)ARG(2);
    struct task_struct *task = bpf_get_current_task_btf();
    struct terminal *terminal;
    struct pty pty;
    u64 key;

    if ((u64)READ(DIRECT, work, func) != ADDRESS(flush_to_ldisc) ||
        READ(1, task, flags) & PF_KTHREAD)
        return;
    pty = find_pty(work);
    key = (u64)pty.slave;
    if (!key || pty.subtype != PTY_TYPE_MASTER)
        return;
    terminal = terminals.lookup(&key);
    if (terminal && terminal->open) {
        answered(ctx, cpu, terminal, pty.slave, klogger_current_task());
    } else if (terminal && terminal->flushing == 1) {
        terminal->early = klogger_current_task();
        terminal->flushing = 2;
    }
}
#endif

/*
 * Logins. A login program gives itself a new login session (audit's sessionid), and then starts the
 * user's shell with a terminal. No tracepoint shows the first step: it is seen when a process forks
 * or executes with another session than before. So what began before the capture is no login.
 */
BPF_TABLE("lru_hash", u32, u32, session_of, 16384); /* by process */
BPF_TABLE("lru_hash", u32, u32, new_sessions, 4096);

struct login {
    u32 session;
    u32 loginuid;
};

BPF_TABLE("lru_hash", u32, struct login, logins, 4096); /* by process: the shell */

#ifdef HAVE_task_struct_sessionid
/* Keeps a process's session; one that it has only now is new. Returns it. */
static __always_inline u32 keep_session(const int direct, struct task_struct *task) {
    u32 process = READ(direct, task, tgid), session = READ(direct, task, sessionid);
    u32 *before = session_of.lookup(&process), one = 1;

    if (before && *before != session && session != NO_SESSION)
        new_sessions.update(&session, &one);
    session_of.update(&process, &session);
    return session;
}
#endif

#if USE_process_made
PROBE(process_made, "LOGIN LOGOUT", "btf:sched_process_fork raw:sched_process_fork")
{
#ifdef HAVE_task_struct_sessionid
    keep_session(DIRECT, (struct task_struct *)ARG(0));
    keep_session(DIRECT, (struct task_struct *)ARG(1));
#endif
}
#endif

#if USE_program_begins
/* Whether it is a user's first program: it leads the terminal's session, or is called `-NAME` as a
 * login shell is. login of the shadow package leads the session itself; it runs others before. */
static __always_inline int is_login_shell(const int direct, struct task_struct *task,
                                          struct signal_struct *process) {
    struct mm_struct *mm = READ(direct, task, mm);
    char first = 0;

    if (!READ(0, process, tty))
        return 0;
    if (READ(0, process, leader))
        return 1;
    bpf_probe_read_user(&first, sizeof(first), (void *)READ(0, mm, arg_start));
    return first == '-';
}

PROBE(program_begins, "LOGIN LOGOUT", "btf:sched_process_exec raw:sched_process_exec")
{
#ifdef HAVE_task_struct_sessionid
    struct task_struct *task = (struct task_struct *)ARG(0);
    struct signal_struct *process = READ(DIRECT, task, signal);
    u32 session = keep_session(DIRECT, task), tgid = READ(DIRECT, task, tgid);
    struct login login = {session, READ(DIRECT, task, loginuid.val)};
    struct klogger_task who;

    if (!new_sessions.lookup(&session) || !is_login_shell(DIRECT, task, process))
        return;
    new_sessions.delete(&session);
    logins.update(&tgid, &login);
    who = klogger_current_task();
    klogger(LOGIN, KLOGGER_TASK(who), session, login.loginuid);
#endif
}
#endif

#if USE_program_ends
PROBE(program_ends, "LOGIN LOGOUT", "btf:sched_process_exit raw:sched_process_exit")
{
    struct task_struct *task = (struct task_struct *)ARG(0);
    u32 tgid = READ(DIRECT, task, tgid);
    struct signal_struct *process = READ(DIRECT, task, signal);
    struct login *login;
    struct klogger_task who;

    if (READ(0, process, live.counter))
        return;
    session_of.delete(&tgid);
    login = logins.lookup(&tgid);
    if (!login)
        return;
    who = klogger_current_task();
    klogger(LOGOUT, KLOGGER_TASK(who), login->session, login->loginuid);
    logins.delete(&tgid);
}
#endif
