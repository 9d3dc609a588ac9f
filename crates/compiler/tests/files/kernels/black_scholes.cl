//@ check black_scholes(calls[4096], puts[4096], prices[4096], strikes[4096], years[4096], 0.02, 0.3) over 1024
//@ check black_scholes(calls[4096], puts[4096], prices[4096], strikes[4096], years[2048], 0.02, 0.3) over 1024

float distribution(float d) {
    float k = 1.0f / (1.0f + 0.2316419f * fabs(d));
    float sum = k * (0.31938153f + k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f))));
    float value = 0.39894228f * exp(-0.5f * d * d) * sum;
    return d > 0.0f ? 1.0f - value : value;
}

// Prices of options, by a helper function that is called twice.
kernel void black_scholes(global float *calls, global float *puts, global const float *prices,
                          global const float *strikes, global const float *years, float rate, float volatility) {
    size_t i = get_global_id(0);
    float spread = volatility * sqrt(years[i]);
    float d1 = (log(prices[i] / strikes[i]) + (rate + 0.5f * volatility * volatility) * years[i]) / spread;
    float one = distribution(d1), other = distribution(d1 - spread);
    float discounted = strikes[i] * exp(-rate * years[i]);
    calls[i] = prices[i] * one - discounted * other;
    puts[i] = discounted * (1.0f - other) - prices[i] * (1.0f - one);
}
