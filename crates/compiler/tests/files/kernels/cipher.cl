//@ check cipher(blocks[8192], key[16], 32) over 1024
//@ check cipher(blocks[8192], key[12], 32) over 1024
//@ guard cipher(blocks[8192], key[12], 32) over 1024

// Rounds of the cipher XTEA. The index into the key is limited by its two lowest bits.
kernel void cipher(global uint2 *blocks, constant uint *key, uint rounds) {
    uint2 block = blocks[get_global_id(0)];
    uint sum = 0;
    for (uint i = 0; i < rounds; i++) {
        block.x += ((block.y << 4 ^ block.y >> 5) + block.y) ^ (sum + key[sum & 3]);
        sum += 0x9e3779b9;
        block.y += ((block.x << 4 ^ block.x >> 5) + block.x) ^ (sum + key[sum >> 11 & 3]);
    }
    blocks[get_global_id(0)] = block;
}
