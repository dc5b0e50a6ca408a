/* Four floats that a CUDA thread loads and stores together. */
#ifndef FORKTASK_FLOAT4_CUH
#define FORKTASK_FLOAT4_CUH

__device__ inline float4 load4(const float *p)
{
    return *(const float4 *)p;
}

__device__ inline void store4(float *p, float4 v)
{
    *(float4 *)p = v;
}

template <typename Body>
__device__ inline float4 each4(Body body)
{
    float4 v;
    v.x = body(0);
    v.y = body(1);
    v.z = body(2);
    v.w = body(3);
    return v;
}

__device__ inline float lane4(const float4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ inline void put4(float *p, float4 v, bool accumulate)
{
    if (accumulate) {
        const float4 old = load4(p);
        v = each4([&](int i) { return lane4(old, i) + lane4(v, i); });
    }
    store4(p, v);
}

#endif
