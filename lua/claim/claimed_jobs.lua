--[[ claimed_jobs: collects the jobs of a claim. It writes their event, the reply, the answer that the slot keeps, and
their new lines.

Keys: state jobs leases
Meta: lease_ms
Args: worker limit bytes_max
Unread: leases
Uses: call(now now_text) state(count write_line) meta(fact) batch(call_many add_many) digits(digits) emit(emit)
    names(give_up_name)
]]

local taken           -- number of claimed jobs
local taken_bytes     -- bytes of their values
local queue_said      -- the queue's own cap as JSON for the event; nil if it has none
local claimed         -- the jobs in the event
local reply_words     -- `ok`, the header, then two words for each job
local ids             -- their ids
local heads, places   -- of a job whose line has the usual form: its head and its place in line; of any other job: its record, and false

local function reset()
  taken, taken_bytes, queue_said = 0, 0, nil
  claimed, reply_words, ids, heads, places = nil, nil, nil, nil, nil
end

--- Return whether the claim is full: no more jobs may be taken.
local function is_full()
  return taken >= limit or taken_bytes >= bytes_max
end

--- Begin the reply. `said` is the queue's own cap as JSON for the event; nil if it has none.
local function open_reply(said)
  check_keys()
  queue_said = said
  claimed, ids, heads, places = {}, {}, {}, {}
  reply_words = {'ok', ''}
end

--- Return a job's word in the reply: its id; its lane, if it has one; and the numbers of its claims, failures and
--- losses, if it was claimed before, with those at its last saved step and the name of its box.
local function word_of(id, lane, job)
  if job and (job.claim > 1 or job.failed or job.lost) then
    return id .. ' ' .. (lane == '' and '-' or lane) .. ' ' .. job.claim .. ' ' .. (job.failed or 0) .. ' ' .. (job.lost or 0)
      .. (job.life and ' ' .. (job.base or '-') .. ' ' .. job.life or '')
  end
  return lane == '' and id or id .. ' ' .. lane
end

--- Take a job, given by its head and its place in line, or by its record. `limits` are those of its lane. Returns
--- whether the claim is full.
local function take(id, spec, limits, lane, head, seq, job)
  spec = spec or redis.call('HGET', jobs, id) or ''
  local at = taken + 1
  taken = at
  local bytes = taken_bytes + #spec
  taken_bytes = bytes
  ids[at] = id
  if queue_said then
    limits = (limits == '' and ',[' or limits .. ',') .. queue_said
  end
  local ending = limits == '' and ']' or ']]'
  if job then
    local claim = count(job, 'claim') + 1
    job.is_taken, job.claim = true, claim
    if claim == 1 then
      give_up_name(id, job)
    end
    heads[at], places[at] = job, false
    claimed[at] = '["' .. id .. '",' .. claim .. limits .. ending
    reply_words[2 * at + 1] = word_of(id, lane, job)
  else
    heads[at], places[at] = head, seq
    claimed[at] = '["' .. id .. '",1' .. limits .. ending
    reply_words[2 * at + 1] = lane == '' and id or id .. ' ' .. lane
  end
  reply_words[2 * at + 2] = spec
  return at >= limit or bytes >= bytes_max
end

--- Append the event of the claimed jobs. Returns the fence, which is the id of the entry, or `-`.
local function emit_claimed()
  return emit('claimed', now_text, worker, claimed) or '-'
end

--- Write the lines and leases of the claimed jobs, under this fence.
local function write_taken(fence)
  if taken == 0 then
    return
  end
  local lease_until = digits(now + fact('lease_ms'))
  local fenced = ' claim=1 fence=' .. fence .. ' by=' .. worker .. ' seq='
  local ending = ' since=' .. now_text
  local lines, leased = taken > 1 and {}, taken > 1 and {}
  for i = 1, taken do
    local id, head, place = ids[i], heads[i], places[i]
    local line
    if place then
      line = 'running ' .. head .. fenced .. place .. ending
    else
      head.state, head.fence, head.by, head.since = 'running', fence, worker, now
      line = write_line(head)
    end
    if not lines then
      redis.call('HSET', state, id, line)
      redis.call('ZADD', leases, lease_until, id)
      return
    end
    local at = 2 * i - 1
    lines[at], lines[at + 1] = id, line
    leased[at], leased[at + 1] = lease_until, id
  end
  call_many('HSET', state, lines)
  add_many(leases, leased)
end

--- Return the reply, with this header, and the answer for the slot to keep.
local function close_reply(header)
  reply_words[2] = header
  return reply_words, taken == 0 and header or header .. ' | ' .. (taken == 1 and ids[1] or table.concat(ids, ' '))
end
