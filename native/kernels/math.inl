// exp, sigmoid, silu, log1p and softplus over sixteen lanes: docs/exactness.md section 3, line by line. Owns
// the polynomials and nothing else. Branch-free: a lane's bits do not depend on its neighbours. Included
// inside the anonymous namespace of an instruction-set unit, after its vec header. Refuses NaN: inputs are
// finite or -inf (an empty maximum).

FINBACK_INLINE f32x16 negate(f32x16 x) { return as_floats(as_bits(x) + broadcast(INT32_MIN)); }
FINBACK_INLINE f32x16 magnitude(f32x16 x) { return as_floats(as_bits(x) & broadcast(INT32_MAX)); }

// 0.895 ulp, over all floats. Below -87 the answer is +0, above 88.72283 it is +inf. Between them p stays in
// (0.7, 1.42), and the exponent field of the sum in 1 .. 254: adding n to it neither leaves the normal
// numbers nor rounds.
FINBACK_INLINE f32x16 exp(f32x16 x) {
    const f32x16 one = broadcast(1.0f);
    const i32x16 n = rint_to_int(x * broadcast(0x1.715476p+0f));
    const f32x16 nf = to_floats(n);
    f32x16 r = fma(nf, broadcast(-0x1.63p-1f), x);  // exact: the constant has ten bits
    r = fma(nf, broadcast(0x1.bd0106p-13f), r);
    f32x16 p = broadcast(0x1.6a241ap-10f);
    p = fma(p, r, broadcast(0x1.1239f2p-7f));
    p = fma(p, r, broadcast(0x1.5558f2p-5f));
    p = fma(p, r, broadcast(0x1.555492p-3f));
    p = fma(p, r, broadcast(0x1.fffffcp-2f));
    p = fma(p, r, one);
    p = fma(p, r, one);
    const f32x16 y = as_floats(as_bits(p) + shift_left<23>(n));
    const f32x16 below = select(less(x, broadcast(-87.0f)), broadcast(0.0f), y);
    return select(less(broadcast(88.72283f), x), broadcast(__builtin_inff()), below);
}

FINBACK_INLINE f32x16 sigmoid(f32x16 x) {
    const f32x16 one = broadcast(1.0f);
    return one / (one + exp(negate(x)));
}

FINBACK_INLINE f32x16 silu(f32x16 x) { return x / (broadcast(1.0f) + exp(negate(x))); }

// 1.97 ulp for 0 <= e <= 1: log1p(e) = 2 artanh(s), s = e / (2 + e).
FINBACK_INLINE f32x16 log1p(f32x16 e) {
    const f32x16 s = e / (broadcast(2.0f) + e);
    const f32x16 z = s * s;
    f32x16 q = broadcast(0x1.f1aeep-4f);
    q = fma(q, z, broadcast(0x1.b6d6a4p-4f));
    q = fma(q, z, broadcast(0x1.250972p-3f));
    q = fma(q, z, broadcast(0x1.9996a8p-3f));
    q = fma(q, z, broadcast(0x1.555558p-2f));
    const f32x16 t = s + s;
    return fma(t * z, q, t);
}

FINBACK_INLINE f32x16 softplus(f32x16 x) {
    return max(x, broadcast(0.0f)) + log1p(exp(negate(magnitude(x))));
}
