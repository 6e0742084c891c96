--[[ taken: the jobs that a claim takes, one after the other, and what its event, its reply, the answer that its slot keeps
and their new lines say of each.

Keys: state jobs leases
Meta: lease_ms
Args: worker limit bytes_max
Uses: call(now now_text) state(count write_line) meta(fact) batch(call_many add_many) digits(digits) emit(emit)
]]

local HEADER = 2   -- words of the reply before the jobs

local taken           -- how many jobs are taken
local taken_bytes     -- and of how many bytes
local queue_said      -- the queue's own limit, as the event says it; nil if it has none
local lease_until
local claimed         -- the event's jobs
local reply_words
local ids             -- of the jobs, as the answer has them that the slot keeps
local leased, running -- leases, and lines, as ZADD and HSET take them
-- Of a job whose line is of the usual form: its head and its place in line; of any other its record.
local heads, places, records

local function reset()
  taken, taken_bytes, queue_said, lease_until = 0, 0, nil, nil
  claimed, reply_words, ids, leased, running = {}, {}, {}, {}, {}
  heads, places, records = {}, {}, {}
end

--- Whether no more may be taken.
local function is_full()
  return taken >= limit or taken_bytes >= bytes_max
end

--- Begin. `said` is nil if the queue has no limit.
local function open_reply(said)
  queue_said, lease_until = said, digits(now + fact('lease_ms'))
  reply_words[1], reply_words[2] = 'ok', ''
end

--- What a reply says of a job: its id; its lane, if it has one; and how often it was claimed, failed and lost its worker, if it
--- was claimed before.
local function word_of(id, lane, job)
  if job and (job.claim > 1 or job.failed or job.lost) then
    return id .. ' ' .. (lane == '' and '-' or lane) .. ' ' .. job.claim .. ' ' .. (job.failed or 0) .. ' ' .. (job.lost or 0)
  end
  return lane == '' and id or id .. ' ' .. lane
end

--- Take a job: with its head and its place in line, or with its record. `limits` are those of its lane.
local function take(id, spec, limits, lane, head, seq, job)
  spec = spec or redis.call('HGET', jobs, id) or ''
  local to = 2 * taken
  taken = taken + 1
  taken_bytes = taken_bytes + #spec
  if queue_said then
    limits = (limits == '' and ',[' or limits .. ',') .. queue_said
  end
  local ending = limits == '' and ']' or ']]'
  leased[to + 1], leased[to + 2], running[to + 1], running[to + 2] = lease_until, id, id, ''
  ids[taken] = id
  if job then
    local claim = count(job, 'claim') + 1
    job.is_taken, job.claim, records[taken] = true, claim, job
    claimed[taken] = '["' .. id .. '",' .. claim .. limits .. ending
  else
    heads[taken], places[taken] = head, seq
    claimed[taken] = '["' .. id .. '",1' .. limits .. ending
  end
  reply_words[HEADER + to + 1], reply_words[HEADER + to + 2] = word_of(id, lane, job), spec
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

--- The reply, which begins with this header; and the answer that the slot is to keep.
local function close_reply(header)
  reply_words[2] = header
  return reply_words, taken == 0 and header or header .. ' | ' .. table.concat(ids, ' ')
end
