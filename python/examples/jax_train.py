# SPDX-License-Identifier: Apache-2.0
# srun -n 4 python jax_train.py: the whole step, since JAX's ranks wait inside one program.
import jax
import jax.numpy as jnp

from gpu_collector_step import step

jax.distributed.initialize()
update = jax.jit(lambda w, x: w - 0.01 * jax.grad(lambda v: jnp.mean((x @ v) ** 2))(w))
w, x = jnp.ones((512, 512)), jnp.ones((64, 512))
for _ in range(1000):
    with step():
        w = update(w, x)
        w.block_until_ready()
