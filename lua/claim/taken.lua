--[[ taken: the jobs that a claim takes, one after the other, and what its event, its reply, the answer that its slot keeps
and their new lines say of each.

Keys: state jobs leases
Meta: lease_ms
Args: worker limit bytes_max
Uses: call(now now_text keep_answer) state(count write_line) meta(fact) batch(call_many add_many) digits(digits)
    emit(emit)
]]

local HEADER = 5   -- words of the reply before the jobs
local WORDS = 6    -- words of each job

local taken           -- how many jobs are taken
local taken_bytes     -- and of how many bytes
local queue_said      -- the queue's own limit, as the event says it; nil if it has none
local lease_until
local claimed         -- the event's jobs
local reply_words
local stored_words    -- the answer that the slot keeps
local leased, running -- leases, and lines, as ZADD and HSET take them
-- Of a job whose line is of the usual form: its head and its place in line; of any other its record.
local heads, places, records

local function reset()
  taken, taken_bytes, queue_said, lease_until = 0, 0, nil, nil
  claimed, reply_words, stored_words, leased, running = {}, {}, {}, {}, {}
  heads, places, records = {}, {}, {}
end

--- Whether no more may be taken.
local function is_full()
  return taken >= limit or taken_bytes >= bytes_max
end

--- Begin. What the reply says before the jobs is filled in when it is known; `said` is nil if the queue has no limit.
local function open_reply(said)
  queue_said, lease_until = said, digits(now + fact('lease_ms'))
  reply_words[1], reply_words[2], reply_words[3], reply_words[4], reply_words[5] = '', '', '', '', ''
  stored_words[1], stored_words[2], stored_words[3], stored_words[4] = '', '', '', ''
end

--- Take a job: with its head and its place in line, or with its record. `limits` are those of its lane.
local function take(id, spec, limits, lane, head, seq, job)
  spec = spec or redis.call('HGET', jobs, id) or ''
  local at, to = HEADER + WORDS * taken, 2 * taken
  taken = taken + 1
  taken_bytes = taken_bytes + #spec
  if queue_said then
    limits = (limits == '' and ',[' or limits .. ',') .. queue_said
  end
  local ending = limits == '' and ']' or ']]'
  leased[to + 1], leased[to + 2], running[to + 1], running[to + 2] = lease_until, id, id, ''
  stored_words[HEADER - 1 + taken] = id
  if job then
    local claim = count(job, 'claim') + 1
    job.is_taken, job.claim, records[taken] = true, claim, job
    claimed[taken] = '["' .. id .. '",' .. claim .. limits .. ending
    reply_words[at + 1], reply_words[at + 2], reply_words[at + 3], reply_words[at + 4] = id, claim, job.failed or 0, job.lost or 0
  else
    heads[taken], places[taken] = head, seq
    claimed[taken] = '["' .. id .. '",1' .. limits .. ending
    reply_words[at + 1], reply_words[at + 2], reply_words[at + 3], reply_words[at + 4] = id, 1, 0, 0
  end
  reply_words[at + 5], reply_words[at + 6] = spec, lane
end

--- Append their event. Returns the fence, which is the number that the event gets, or `-`.
local function emit_claimed()
  return emit('claimed', now_text, worker, claimed) or '-'
end

--- Write their lines and leases, under this fence.
local function write_taken(fence)
  local fenced = ' claim=1 fence=' .. fence .. ' seq='
  local ending = ' since=' .. now_text .. ' by=' .. worker
  for i = 1, taken do
    local job = records[i]
    if job then
      job.state, job.fence, job.by, job.since = 'running', fence, worker, now
      running[2 * i] = write_line(job)
    else
      running[2 * i] = 'running ' .. heads[i] .. fenced .. places[i] .. ending
    end
  end
  call_many('HSET', state, running)
  add_many(leases, leased)
end

--- End the call; its slot keeps what a repetition is answered from.
local function close_reply(next_due, more, fence)
  more = more and 1 or 0
  reply_words[1], reply_words[2], reply_words[3], reply_words[4], reply_words[5] = 'ok', now, next_due, more, fence
  stored_words[1], stored_words[2], stored_words[3], stored_words[4] = now_text, next_due ~= '-' and digits(next_due) or '-', more, fence
  keep_answer(stored_words)
  return reply_words
end
