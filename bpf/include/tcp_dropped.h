/* SPDX-License-Identifier: GPL-2.0-only */
/* Packets that the kernel drops: their segments, and the functions that drop them. For tcp.bpf.c.
 */

/* The functions that dropped a packet, by number: the collector writes their names into the file
 * (collector/session/drop_places.py). `named` of number 0 counts those so far.
 */
#define DROP_PLACES 1024

struct drop_place {
    u64 named;
    char function[56];
};

BPF_HASH(drop_numbers, u64, u32, DROP_PLACES);
BPF_ARRAY(drop_places, struct drop_place, DROP_PLACES);
/* The format of a name: the verifier wants it where nobody can change it (CONSTANTS of
 * collector/loader/programs.py).
 */
BPF_F_TABLE("array", u32, u64, symbol_format, 1, BPF_F_RDONLY_PROG);

/* The number of a place in the kernel's code, from 1; 0: there is no number left. */
static __always_inline u32 place_of(u64 address) {
    u32 *known = drop_numbers.lookup(&address);
    u32 number = 0;
    struct drop_place *count, *place;
    u64 *format,
        before = address - 1; /* a call returns behind itself: to the next function, perhaps */

    if (known)
        return *known;
    count = drop_places.lookup(&number);
    format = symbol_format.lookup(&number);
    if (!count || !format || *(volatile u64 *)&count->named >= DROP_PLACES - 1)
        return 0;
    number = __sync_fetch_and_add(&count->named, 1) + 1;
    /* Another CPU may have given out the last one meanwhile. */
    place = drop_places.lookup(&number);
    if (!place)
        return 0;
    bpf_snprintf(place->function, sizeof(place->function), (char *)format, &before, sizeof(before));
    *(volatile u64 *)&place->named = 1;
    drop_numbers.update(&address, &number);
    return number;
}

/* A segment in a packet. Ports in the machine's order. */
struct segment {
    struct network_packet packet;
    u32 seq;
    u32 ack;
    u32 len;
    u16 bits;
    u16 source;
    u16 target;
    u8 addressed; /* IP's header is there too */
    u8 sent;      /* this host sent it */
};

/* Finds the segment in a packet. of_tcp: a TCP socket has sent it, perhaps without IP's header. */
static __always_inline int segment_of(struct sk_buff *skb, int of_tcp, struct segment *found) {
    u8 *head = READ(0, skb, head);
    u32 network = READ(0, skb, network_header);
    u32 transport = READ(0, skb, transport_header);
    u32 end = READ(0, skb, tail), rest = READ(0, skb, data_len);
    struct network_packet *packet = &found->packet;
    struct network_tcp tcp;

    if (network && network < end && network != 0xffff &&
        network_parse(head + network, end - network + rest, end - network, packet)) {
        if (!network_tcp_of(packet, &tcp))
            return 0;
        found->addressed = 1;
    } else if (of_tcp && transport && transport < end) {
        packet->protocol = NETWORK_TCP;
        packet->transport = head + transport;
        packet->payload = end - transport + rest;
        if (!network_tcp_of(packet, &tcp))
            return 0;
    } else {
        return 0;
    }
    found->seq = bpf_ntohl(tcp.seq);
    found->ack = bpf_ntohl(tcp.ack);
    found->len = packet->payload;
    found->bits = tcp.flags | (tcp.size & 1) << 8;
    found->source = bpf_ntohs(tcp.source);
    found->target = bpf_ntohs(tcp.target);
    return 1;
}

/* The ends of the connection that a packet is of. sent: by this host. */
static __always_inline void ends_of_segment(struct sk_buff *skb, const struct segment *segment,
                                            int sent, struct endpoints *ends) {
    ends->family = segment->packet.version == 6 ? FAMILY_V6 : FAMILY_V4;
    ends->state = 0;
    ends->netns = 0;
    if (sent) {
        ends->lport = segment->source;
        ends->rport = segment->target;
        __builtin_memcpy(ends->laddr, segment->packet.saddr, 16);
        __builtin_memcpy(ends->raddr, segment->packet.daddr, 16);
    } else {
        ends->lport = segment->target;
        ends->rport = segment->source;
        __builtin_memcpy(ends->laddr, segment->packet.daddr, 16);
        __builtin_memcpy(ends->raddr, segment->packet.saddr, 16);
    }
#ifdef HAVE_net_device_nd_net
    struct net_device *device = READ(0, skb, dev);
    struct sock *sender = READ(0, skb, sk);

    /* Before a packet is routed it has no device, but a socket, if only one of the kernel's own. */
    if (device)
        ends->netns = cookie_of(0, READ(0, device, nd_net.net));
    else if (sender)
        ends->netns = cookie_of(0, READ(0, sender, __sk_common.skc_net.net));
#endif
}
