--[[ chosen: the jobs that a claim takes, one after the other, and what its event, its reply, the answer that its slot keeps
and their new lines say of each.

Keys: state jobs leases
Meta: lease_ms
Uses: call state meta batch digits
]]

local HEADER, WORDS = 5, 6      -- words of the reply before the jobs, and of each job

local chosen = 0
local chosen_bytes = 0
local queue_said = nil          -- the queue's own limit, as the event says it
local lease_until = nil
local claimed = {}              -- the event's jobs
local told, kept = {}, {}       -- words of the reply and of the answer
local leased, running = {}, {}
local heads_taken, places_taken = {}, {}   -- of a job whose line is of the usual form
local records_taken = {}        -- of any other: its record

local function full()
  return chosen >= limit or chosen_bytes >= bytes_max
end

--- Begin. What the reply says before the jobs is filled in when it is known; `said` is nil if the queue has no limit.
local function open_reply(said)
  queue_said, lease_until = said, digits(now + fact('lease_ms'))
  told[1], told[2], told[3], told[4], told[5] = '', '', '', '', ''
  kept[1], kept[2], kept[3], kept[4] = '', '', '', ''
end

--- Take a job: with its head and its place in line, or with its record. `limits` are those of its lane.
local function choose(id, spec, limits, lane, head, seq, job)
  spec = spec or redis.call('HGET', jobs, id) or ''
  local at, to = HEADER + WORDS * chosen, 2 * chosen
  chosen = chosen + 1
  chosen_bytes = chosen_bytes + #spec
  if queue_said then
    limits = (limits == '' and ',[' or limits .. ',') .. queue_said
  end
  local ending = limits == '' and ']' or ']]'
  leased[to + 1], leased[to + 2], running[to + 1], running[to + 2] = lease_until, id, id, ''
  kept[HEADER - 1 + chosen] = id
  if job then
    local claim = count(job, 'claim') + 1
    job.chosen, job.claim, records_taken[chosen] = true, claim, job
    claimed[chosen] = '["' .. id .. '",' .. claim .. limits .. ending
    told[at + 1], told[at + 2], told[at + 3], told[at + 4] = id, claim, job.failed or 0, job.lost or 0
  else
    heads_taken[chosen], places_taken[chosen] = head, seq
    claimed[chosen] = '["' .. id .. '",1' .. limits .. ending
    told[at + 1], told[at + 2], told[at + 3], told[at + 4] = id, 1, 0, 0
  end
  told[at + 5], told[at + 6] = spec, lane
end

--- Write their lines and leases, under this fence.
local function write_chosen(fence)
  local fenced = ' claim=1 fence=' .. fence .. ' seq='
  local ending = ' since=' .. now_text .. ' by=' .. worker
  for i = 1, chosen do
    local job = records_taken[i]
    if job then
      job.state, job.fence, job.by, job.since = 'running', fence, worker, now
      running[2 * i] = write_line(job)
    else
      running[2 * i] = 'running ' .. heads_taken[i] .. fenced .. places_taken[i] .. ending
    end
  end
  call_many('HSET', state, running)
  add_many(leases, leased)
end

--- End the call; its slot keeps what a repetition is answered from.
local function close_reply(next_due, more, fence)
  more = more and 1 or 0
  told[1], told[2], told[3], told[4], told[5] = 'ok', now, next_due, more, fence
  kept[1], kept[2], kept[3], kept[4] = now_text, next_due ~= '-' and digits(next_due) or '-', more, fence
  keep_answer(kept)
  return told
end
