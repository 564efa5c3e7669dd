/* SPDX-License-Identifier: GPL-2.0-only */
/* Parses the headers of packets: for network.bpf.c and tcp.bpf.c. */
#define NETWORK_ICMP           1
#define NETWORK_TCP            6
#define NETWORK_UDP            17
#define NETWORK_ICMPV6         58
#define NETWORK_WIRE_V4        0x0800
#define NETWORK_WIRE_V6        0x86dd
#define NETWORK_FRAGMENT       44
#define NETWORK_MORE_FRAGMENTS 0x2000
/* At most so many headers after that of IPv6 are skipped. */
#define NETWORK_EXTENSIONS 3

struct network_v4 {
    u8 version_length;
    u8 service;
    u16 size;
    u16 id;
    u16 fragment;
    u8 hops;
    u8 protocol;
    u16 sum;
    u32 saddr;
    u32 daddr;
};

struct network_v6 {
    u32 version_flow;
    u16 size;
    u8 protocol;
    u8 hops;
    u64 saddr[2];
    u64 daddr[2];
};

struct network_extension {
    u8 protocol;
    u8 size;
    u16 fragment;
    u32 id;
};

struct network_tcp {
    u16 source;
    u16 target;
    u32 seq;
    u32 ack;
    u8 size;
    u8 flags;
    u16 window;
};

/* A packet: addresses in network order, numbers in the machine's order, sizes in bytes. */
struct network_packet {
    u64 saddr[2];
    u64 daddr[2];
    /* The protocol's header; null in a fragment without it. */
    u8 *transport;
    u32 protocol;
    u32 payload; /* from the protocol's header on */
    u32 size;
    u32 id;
    u32 fragment;
    u32 offset;
    u32 total;
    u8 version;
    u8 service;        /* type of service, or traffic class */
    u8 hops;           /* time to live, or hop limit */
    u8 next;           /* protocol, or the next header of the fixed header of IPv6 */
    u16 fragment_bits; /* as in the header */
};

/* The v4-mapped address of an IPv4 address, both in network order. */
static __always_inline void network_map_v4(u64 *address, u32 v4) {
    address[0] = 0;
    address[1] = (u64)v4 << 32 | 0xffff0000u;
}

static __always_inline int network_is_ip(u16 wire) {
    return wire == bpf_htons(NETWORK_WIRE_V4) || wire == bpf_htons(NETWORK_WIRE_V6);
}

/* Describes a fragment. offset: in the payload, in bytes; headers: bytes before the payload. */
static __always_inline void network_fragment(struct network_packet *packet, u32 offset, int is_last,
                                             u32 headers) {
    packet->fragment = 1;
    packet->offset = offset;
    packet->total = is_last ? headers + offset + packet->payload : 0;
    if (offset)
        packet->transport = 0;
}

/*
 * Parses the IP headers that begin at `at`. bytes: the rest of the buffer from there; linear: the
 * part of it that can be read. A size of 0 in the header, as in very large packets, or one that is
 * too large is replaced by `bytes`. Returns 0 if this is no packet.
 */
static __always_inline int network_parse(u8 *at, u32 bytes, u32 linear,
                                         struct network_packet *packet) {
    /* One read for both versions; what is behind a short packet is not used. */
    struct network_v6 six;
    u32 headers;
    u8 version;

    if (linear < sizeof(struct network_v4) || linear > bytes)
        return 0;
    bpf_probe_read_kernel(&six, sizeof(six), at);
    version = six.version_flow;
    packet->fragment = 0;
    packet->offset = 0;
    packet->id = 0;
    packet->fragment_bits = 0;
    packet->version = version >> 4;
    if (version >> 4 == 4) {
        const struct network_v4 head = *(struct network_v4 *)&six;
        u32 fragment;

        headers = (version & 15) * 4;
        packet->size = bpf_ntohs(head.size);
        if (!packet->size || packet->size > bytes)
            packet->size = bytes;
        if (headers < sizeof(head) || headers > packet->size)
            return 0;
        packet->protocol = packet->next = head.protocol;
        packet->service = head.service;
        packet->hops = head.hops;
        packet->id = bpf_ntohs(head.id);
        network_map_v4(packet->saddr, head.saddr);
        network_map_v4(packet->daddr, head.daddr);
        packet->transport = at + headers;
        packet->payload = packet->size - headers;
        packet->total = packet->size;
        fragment = packet->fragment_bits = bpf_ntohs(head.fragment);
        if (fragment & 0x3fff)
            network_fragment(packet, (fragment & 0x1fff) * 8, !(fragment & NETWORK_MORE_FRAGMENTS),
                             headers);
    } else if (version >> 4 == 6) {
        const struct network_v6 head = six;
        u32 protocol;

        headers = sizeof(head);
        if (linear < headers)
            return 0;
        packet->size = bpf_ntohs(head.size);
        packet->size = packet->size ? packet->size + headers : bytes;
        if (packet->size > bytes)
            packet->size = bytes;
        packet->saddr[0] = head.saddr[0];
        packet->saddr[1] = head.saddr[1];
        packet->daddr[0] = head.daddr[0];
        packet->daddr[1] = head.daddr[1];
        packet->transport = at + headers;
        packet->payload = packet->size - headers;
        packet->total = packet->size;
        protocol = packet->next = head.protocol;
        packet->service = bpf_ntohl(head.version_flow) >> 20;
        packet->hops = head.hops;
#pragma unroll
        for (int i = 0; i < NETWORK_EXTENSIONS; i++) {
            struct network_extension more;
            u32 step = 8;

            if (protocol != 0 && protocol != 43 && protocol != NETWORK_FRAGMENT && protocol != 60)
                break;
            if (headers + step > linear || packet->payload < step || !packet->transport)
                break;
            bpf_probe_read_kernel(&more, sizeof(more), packet->transport);
            if (protocol == NETWORK_FRAGMENT) {
                u32 fragment = packet->fragment_bits = bpf_ntohs(more.fragment);

                packet->id = bpf_ntohl(more.id);
                packet->transport += step;
                packet->payload -= step;
                network_fragment(packet, fragment & 0xfff8, !(fragment & 1), headers);
            } else {
                step = (more.size + 1) * 8;
                if (packet->payload < step)
                    break;
                packet->transport += step;
                packet->payload -= step;
                headers += step;
            }
            protocol = more.protocol;
        }
        packet->protocol = protocol;
    } else {
        return 0;
    }
    /* The shortest headers (UDP, ICMP) have 8 bytes; network_tcp_of() checks that of TCP. */
    if (packet->transport && packet->transport + 8 > at + linear)
        packet->transport = 0;
    return 1;
}

/* Reads the header of TCP; 0 if there is none. payload becomes the size of the segment's data. */
static __always_inline int network_tcp_of(struct network_packet *packet, struct network_tcp *tcp) {
    u32 headers;

    if (packet->protocol != NETWORK_TCP || !packet->transport || packet->payload < 20)
        return 0;
    if (bpf_probe_read_kernel(tcp, sizeof(*tcp), packet->transport))
        return 0;
    headers = (tcp->size >> 4) * 4;
    packet->payload = packet->payload > headers ? packet->payload - headers : 0;
    return 1;
}

/* The value of a type in enum icmp_type. */
static __always_inline u32 network_icmp_type(const struct network_packet *packet, u32 type) {
    return packet->protocol == NETWORK_ICMPV6 ? 256 + type : type;
}

/* The value of a code in enum icmp_code; type: the value in enum icmp_type. */
static __always_inline u32 network_icmp_code(u32 type, u32 code) {
    if (type == 3 || type == 5 || type == 11 || type == 12 || type == 257 || type == 259 ||
        type == 260)
        return type * 256 + code;
    return code;
}

/* Whether a type is a reply, as to an echo or timestamp request. */
static __always_inline int network_is_reply(u32 type) {
    return type == 0 || type == 14 || type == 16 || type == 18 || type == 43 || type == 385 ||
           type == 417;
}
