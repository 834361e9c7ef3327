# SPDX-License-Identifier: Apache-2.0
# torchrun --standalone --nproc-per-node 4 hf_trainer.py
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gpu_collector_step.hf import StepTime

model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=128, n_head=2, vocab_size=512))
tokens = [{"input_ids": ids, "labels": ids} for ids in torch.randint(512, (4096, 64))]
arguments = TrainingArguments("out", per_device_train_batch_size=8, report_to=[])
Trainer(model, arguments, train_dataset=tokens, callbacks=[StepTime()]).train()
