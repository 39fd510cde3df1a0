"""mix128: a 128-bit digest that a device computes, and whose parts add up.

Definition. All arithmetic is modulo 2^64, `>>` is the logical shift, `rotr` the rotation.

1. The *lanes* of a tensor are the 8-byte little-endian words of its logical row-major bytes; a last
   one that the bytes do not fill is padded with zeros. Lane number p has the *position* p.
2. A lane of value v at position p is mixed into a pair of words, with constants that are the first
   64 fractional bits of square roots, made odd (`reference.GAMMAS`, `reference.MULTIPLIERS`):

       s = v ^ rotr(v, 26) ^ rotr(v, 51)
       x = s ^ (p + 1) * G0                  y = s + (p + 1) * G1
       x = x * M00                           y = y * M10
       x = x ^ (x >> 13) ^ (x >> 32)         y = y ^ (y >> 13) ^ (y >> 32)
       x = x * M01                           y = y * M11
       x = x ^ (x >> 32)                     y = y ^ (y >> 32)

3. The *sums* of a tensor are the sum of all x and the sum of all y; none for an empty tensor, 0.
4. To *finish* sums X and Y over n bytes, each is mixed as a lane at the position n. The digest is
   the x of X and then the y of Y, each as 8 little-endian bytes.

What follows from it:

- Addition is associative and commutative, so no block size, grid or order changes the sums.
- Each step of the mixing has an inverse. So two tensors that differ in one lane only never have
  equal sums, in neither word; and the sums can be got back from a digest and its length.
- The position enters the two words in two ways (xor and addition, with other constants), so lanes
  that happen to take each other's part in one do not in the other.
- The first step spreads a bit over three places. Without it a change of the top bits, of signs,
  adds one of so few amounts that those of two places cancel; a test shows it.
- Sums of disjoint sets of lanes add up, if each lane has its position in the whole: see `shards`.
- Nobody's attack is withstood: who knows the constants can make two tensors of one digest.

reference   the definition in numpy, and what digests host memory
vectorised  torch operators, on any device
launches    Triton: one pass over a tensor, or over many tensors in one launch
kernels     what a program of such a launch does
shards      sums of parts that add up to those of the whole
device      a tensor's digest where the tensor is
"""
